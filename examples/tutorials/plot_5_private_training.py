"""
Train without telling on anybody: differential privacy
======================================================

A trained network may give away whether a certain example was among its data. Private training bounds that:
each example's gradient is clipped to a length, and noise that hides one such gradient is added to their sum
(Abadi et al., *Deep learning with differential privacy*, 2016). Opacus does this for PyTorch and computes the
cost, an epsilon.

The price is time and memory, because the gradient of *every* example must be clipped. Our modules compute the
norms of these gradients in the backward of their kernels, without the gradients (*ghost clipping*), and then
sum the clipped ones in a second backward. This page compares them with Opacus' own LSTM, which keeps all
gradients.

The model, the data and the loop are in ``examples/private_training.py``: an LSTM reads a handwritten digit
row by row. One call makes its training private::

    model, optimizer, criterion, loader = PrivacyEngine().make_private_with_epsilon(
        module=model, optimizer=optimizer, criterion=criterion, data_loader=loader,
        target_epsilon=8, target_delta=1e-3, epochs=10, max_grad_norm=1.0, grad_sample_mode="ghost",
    )
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path.cwd().parent))
import private_training

# %%
# Each runs in its own process, so that its memory can be measured. An epsilon of 8 is weak privacy, 2 is
# strong; infinity is ordinary training.

EPOCHS = 10
runs = {
    "not private": ("ours", "ghost", float("inf")),
    "ours, epsilon 8": ("ours", "ghost", 8.0),
    "Opacus DPLSTM, epsilon 8": ("theirs", "hooks", 8.0),
    "ours, epsilon 2": ("ours", "ghost", 2.0),
}
found = {
    name: private_training.in_a_process(kind, mode, epsilon=epsilon, epochs=EPOCHS)
    for name, (kind, mode, epsilon) in runs.items()
}
for name, result in found.items():
    print(
        f"{name}: {result['accuracy'][-1]:.1%} right, {result['seconds']:.1f} s, "
        f"{result['MB']:.0f} MB for training"
    )

# %%
# Privacy costs accuracy: the stronger, the more. Both private runs at the same epsilon learn equally well,
# because they compute the same sums. They differ in time and memory.

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.4), width_ratios=(2, 1, 1))
for name, result in found.items():
    left.plot(range(1, EPOCHS + 1), result["accuracy"], label=name)
left.set(xlabel="epoch", ylabel="unseen digits read right", ylim=(0, 1))
left.legend(fontsize=8)
beside = {"not\nprivate": "not private", "ours": "ours, epsilon 8", "DPLSTM": "Opacus DPLSTM, epsilon 8"}
for axes, key, label in ((middle, "seconds", "seconds"), (right, "MB", "MB for training")):
    axes.bar(list(beside), [found[name][key] for name in beside.values()], color=["C0", "C1", "C2"])
    axes.set_ylabel(label)
figure.tight_layout()
assert found["ours, epsilon 8"]["accuracy"][-1] > 0.5
