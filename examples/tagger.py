"""A tagger for sentences of different lengths: each word's tag depends on words on both sides of it.

The made-up language has words 1 to 9; 0 is padding. A word's tag says whether the last larger word before it
is nearer than the next larger word after it. A bidirectional LSTM reads padded sentences with their lengths:
the values of the padding have no effect, and it costs nothing.

    python examples/tagger.py --steps 300
"""

import argparse

import torch
from torch import Tensor, nn

import xpgrad_torch

WORDS, TAGS = 10, 2


def sentences(count: int, longest: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return words (N, T), tags (N, T), -100 in the padding, and lengths (N,)."""
    lengths = torch.randint(2, longest + 1, (count,), generator=generator)
    words = torch.randint(1, WORDS, (count, longest), generator=generator)
    words[torch.arange(longest) >= lengths[:, None]] = 0
    position = torch.arange(longest)
    larger = words[:, None, :] > words[:, :, None]  # [n, t, s]: is word s larger than word t?
    distance = (position[:, None] - position).abs().expand(count, -1, -1)
    far = longest + 1
    before = torch.where(larger & (position < position[:, None]), distance, far).amin(-1)
    behind = torch.where(larger & (position > position[:, None]), distance, far).amin(-1)
    return words, torch.where(words > 0, (before < behind).long(), -100), lengths


class Tagger(nn.Module):
    """Embedding, bidirectional LSTM, a linear layer for each word."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, size)
        self.rnn = xpgrad_torch.LSTM(size, size, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * size, TAGS)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Scores (N, T, tags)."""
        return self.head(self.rnn(self.embed(words), lengths=lengths)[0])


def accuracy(model: nn.Module, words: Tensor, tags: Tensor, lengths: Tensor) -> float:
    with torch.no_grad():
        guess = model(words, lengths).argmax(-1)
    known = tags >= 0
    return float((guess == tags)[known].double().mean())


def train(steps: int, seed: int = 0) -> tuple[float, float]:
    """Return the accuracy on new sentences before and after training."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    unseen = sentences(200, 20, generator)
    before = accuracy(model, *unseen)
    for _ in range(steps):
        words, tags, lengths = sentences(32, 20, generator)
        loss = nn.functional.cross_entropy(model(words, lengths).transpose(1, 2), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return before, accuracy(model, *unseen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="batches of 32 sentences")
    before, after = train(parser.parse_args().steps)
    print(f"right tags on unseen sentences: {before:.1%} before, {after:.1%} after training")


if __name__ == "__main__":
    main()
