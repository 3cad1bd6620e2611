"""``python -m callers PEER JOBS.npz RESULTS.npz`` runs all jobs of one peer."""

import contextlib
import importlib
import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .case import Absent, Job

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")  # an error shows who raised it


class Peer(NamedTuple):
    """A peer's module, the distributions that give its version, and its abilities beyond plain gradients."""

    module: str
    function: str
    libraries: tuple[str, ...]
    gradient_attributes: tuple[str, ...] = ()


PEERS = {
    "pytorch": Peer("call_pytorch", "pytorch", ("torch",), ("per_sample",)),
    "pytorch_native": Peer("call_pytorch", "pytorch_native", ("torch",), ("per_sample",)),
    "onnx_runtime": Peer("call_onnx_runtime", "onnx_runtime", ("onnxruntime",), ("peephole",)),
    "onnx_reference": Peer("call_onnx_reference", "onnx_reference", ("onnx",)),
    "jax": Peer("call_jax", "jax", ("jax",), ("per_sample",)),
    "keras": Peer("call_keras", "keras", ("tensorflow", "keras")),
    "thinc": Peer("call_thinc", "thinc", ("thinc",)),
}


def _versions(peer: Peer) -> Iterator[str]:
    for name in peer.libraries:
        version = getattr(importlib.import_module(name), "__version__", None)
        yield f"{name} {version or importlib.metadata.version(name)}"
    yield f"NumPy {np.__version__}"


def _is_our_own(error: Exception) -> bool:
    """Whether an error is one of these callers' own mistakes."""
    kinds = (AttributeError, LookupError, NameError, TypeError)
    last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return isinstance(error, kinds) and (last.parent == Path(__file__).parent or last.name == "onnx_node.py")


def _beyond(peer: Peer, job: Job) -> list:
    """The parts of a case that this peer, or every peer, lacks."""
    missing = set(job.gradient_attributes) - set(peer.gradient_attributes)
    missing |= {"method"} & set(job.attributes)
    missing |= {"C_all"} & set(job.cotangents)
    if job.gradient_attributes.get("per_sample") == "norm":
        missing.add("norms")
    return sorted(missing)


def main() -> int:
    """Run all jobs of one peer."""
    key, jobs, results = sys.argv[1:]
    peer = PEERS[key]
    compute = getattr(importlib.import_module(f".{peer.module}", __package__), peer.function)
    arrays: dict = {}
    report: dict = {"versions": list(_versions(peer)), "jobs": []}
    with np.load(jobs) as archive:
        for about in json.loads(str(archive["jobs"])):
            entry: dict = {"id": about["id"], "status": "done"}
            job = Job.read(about, archive)
            try:
                if beyond := _beyond(peer, job):
                    raise Absent(", ".join(beyond))
                with contextlib.redirect_stdout(sys.stderr):
                    found = compute(job)
            except Absent as absent:
                entry |= {"status": "absent", "message": str(absent)}
            except Exception as error:  # a peer's exceptions are its answer; mistakes of the callers are not
                if _is_our_own(error):
                    raise
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                entry |= {"status": "refused", "message": first[:2000]}
            else:
                entry["names"] = list(found)
                arrays |= {f"{about['id']}/{name}": np.asarray(array) for name, array in found.items()}
            report["jobs"].append(entry)
    np.savez(results, report=json.dumps(report), **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
