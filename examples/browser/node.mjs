// node node.mjs [onnxruntime-web | onnxruntime-node] [steps]: the losses as JSON.
import { readFile } from "node:fs/promises";
import { train } from "./train.mjs";

const [name = "onnxruntime-web", steps = "200"] = process.argv.slice(2);
const loaded = await import(name);
const ort = loaded.InferenceSession ? loaded : loaded.default;
const read = async (file) => new Uint8Array(await readFile(new URL(file, import.meta.url)));
const { losses } = await train(ort, await read("step.onnx"), await read("values.onnx"), { steps: Number(steps) });
console.log(JSON.stringify(losses));
process.exit(0);
