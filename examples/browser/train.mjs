// Training in a few lines: for onnxruntime-web in a page, and for it or onnxruntime-node under Node.js.

/** Random numbers from 0 to 1: mulberry32, the same everywhere. */
export function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Waves (T, N, 1) of several lengths and phases, and how each goes on, (N, 1). */
export function batch(ort, random, T, N) {
  const x = new Float32Array(T * N), target = new Float32Array(N);
  for (let n = 0; n < N; n++) {
    const step = 0.2 + 0.4 * random(), phase = 6.28 * random();
    for (let t = 0; t < T; t++) x[t * N + n] = Math.sin(phase + t * step);
    target[n] = Math.sin(phase + T * step);
  }
  return {
    x: new ort.Tensor("float32", x, [T, N, 1]),
    target: new ort.Tensor("float32", target, [N, 1]),
  };
}

/** The losses of so many steps, and the last values; `step` and `values` are the models' bytes. */
export async function train(ort, step, values, { steps = 200, rate = 0.01, onStep = () => {} } = {}) {
  const session = await ort.InferenceSession.create(step);
  const first = await ort.InferenceSession.create(values);
  let known = await first.run({});
  const random = generator(1), losses = [];
  const learning_rate = new ort.Tensor("float32", Float32Array.of(rate), []);
  for (let k = 0; k < steps; k++) {
    const results = await session.run({ ...batch(ort, random, 20, 16), learning_rate, ...known });
    known = Object.fromEntries(Object.keys(known).map((name) => [name, results[`${name}_new`]]));
    losses.push(results.loss.data[0]);
    await onStep(k, losses);
  }
  return { losses, values: known };
}
