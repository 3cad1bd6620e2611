"""Models of one node, which ONNX Runtime and onnx's reference evaluator run."""

from typing import Any

from .case import Job, per_dimension

__all__ = ["attributes_of", "model"]


def model(
    op_type: str, inputs: dict, outputs: dict, domain: str = "", opset: int = 20, **attributes: Any
) -> Any:
    """A model of one node.

    `inputs` are arrays by the name of the operator's operand in its order, None where one is left out;
    `outputs` tells by its name whether a result is wanted.
    """
    import onnx
    from onnx import helper

    rows: list = []
    for given in (inputs, outputs):
        row = [name if there is not None and there is not False else "" for name, there in given.items()]
        while row and not row[-1]:
            row.pop()
        rows.append(row)
    node = helper.make_node(op_type, rows[0], rows[1], domain=domain, **attributes)
    kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in inputs.items() if v is not None}
    ends = [
        [helper.make_tensor_value_info(n, kinds.get(n, onnx.TensorProto.FLOAT), None) for n in row if n]
        for row in rows
    ]
    graph = helper.make_graph([node], "g", ends[0], ends[1])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset <= 20 else 11)


def attributes_of(job: Job) -> dict:
    """The attributes as ONNX has them."""
    a = dict(job.attributes)
    if "input_forget" in a:
        a["input_forget"] = int(a["input_forget"])
    if job.kernel in ("lstm", "gru", "rnn"):
        a["hidden_size"] = job.arguments["R"].shape[2]
    if job.kernel in ("conv", "conv_transpose"):
        rank = job.arguments["X"].ndim - 2
        for name in ("strides", "dilations", "output_padding"):
            if name in a:
                a[name] = per_dimension(a[name], rank)
        if "pads" in a:
            a["pads"] = [n for end in job.pads for n in end]
    return a
