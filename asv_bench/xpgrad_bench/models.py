"""Networks in their published shapes, of PyTorch's modules, for ``models.py``. Weights and data are random.

References ---------- The references of `networks`, and: Zaremba, Sutskever and Vinyals, "Recurrent neural
network regularization" (2014), for the word model. Hidasi and others, "Session-based recommendations" (2015),
for GRU4Rec. Salinas and others, "DeepAR" (2017). Lim and others, "Temporal fusion transformers" (2019), with
the sizes for the electricity data. Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning
to align and translate" (2014). Shi, Bai and Yao, "An end-to-end trainable neural network for image-based
sequence recognition" (2015), for CRNN. Bai, Kolter and Koltun, "An empirical evaluation of generic
convolutional and recurrent networks" (2018), for TCN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class Work(NamedTuple):
    """A network: a function that makes it, and its input by a step's number; 0 has the usual shape."""

    make: Callable[[], nn.Module]
    given: Callable[[int], tuple[Any, ...]]


# --- recurrent


class Words(nn.Module):
    """A language model over words: embedding, recurrent layers, scores of the vocabulary."""

    def __init__(self, layer: Callable[..., nn.Module], size: int, layers: int, words: int = 10_000) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(words, size), nn.Linear(size, words)
        self.layers = layer(size, size, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (T, N, words)."""
        return self.score(self.layers(self.embed(x))[0])


class Tagger(nn.Module):
    """A tag for each word of packed sentences, from a recurrent layer in both directions."""

    def __init__(self, size: int = 100, hidden: int = 128, tags: int = 17) -> None:
        super().__init__()
        self.embed = nn.Embedding(20_000, size)
        self.layer = nn.LSTM(size, hidden, bidirectional=True, batch_first=True)
        self.score = nn.Linear(2 * hidden, tags)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Scores of all words, one behind the other."""
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        return self.score(self.layer(packed)[0].data)


class Reviews(nn.Module):
    """A class for each text, from the last states of an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(20_000, 128), nn.Linear(128, 2)
        self.layer = nn.LSTM(128, 64, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 2)."""
        _, (h, _) = self.layer(self.embed(x))
        return self.score(torch.cat([*h], dim=1))


class Forecaster(nn.Module):
    """DeepAR: a mean and a spread for every step, from two layers of LSTM."""

    def __init__(self, features: int = 8, hidden: int = 40) -> None:
        super().__init__()
        self.layers, self.score = nn.LSTM(features, hidden, 2, batch_first=True), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Parameters (N, T, 2)."""
        return self.score(self.layers(x)[0])


class Gated(nn.Module):
    """TFT's gated residual network: two layers, a gate, and the normalized sum with the input."""

    def __init__(self, given: int, made: int, context: int = 0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(given, made), nn.Linear(made, made)
        self.context = nn.Linear(context, made, bias=False) if context else None
        self.skip: nn.Module = nn.Identity() if given == made else nn.Linear(given, made)
        self.gate, self.norm = _gate(made), nn.LayerNorm(made)
        self.bend = nn.ELU()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """A number for each of `made`."""
        y = self.first(x)
        if self.context is not None and context is not None:
            y = y + self.context(context)
        return self.norm(self.skip(x) + self.gate(self.second(self.bend(y))))


def _gate(size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, 2 * size), nn.GLU())


class Selection(nn.Module):
    """TFT's selection of variables: the mean of their vectors, with weights that depend on all variables."""

    def __init__(self, variables: int, size: int) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, size) for _ in range(variables))
        self.each = nn.ModuleList(Gated(size, size) for _ in range(variables))
        self.weigh = Gated(variables * size, variables, size)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """A vector (N, T, size) for each step."""
        vectors = [embed(x[..., k : k + 1]) for k, embed in enumerate(self.embed)]
        weights = torch.softmax(self.weigh(torch.cat(vectors, dim=-1), context), dim=-1)
        made = torch.stack([one(v) for one, v in zip(self.each, vectors, strict=True)], dim=-1)
        return (made * weights.unsqueeze(-2)).sum(dim=-1)


class Fusion(nn.Module):
    """TFT: LSTMs over the past and over the known future, then attention to all earlier steps."""

    def __init__(self, past: int = 4, future: int = 3, size: int = 160, heads: int = 4) -> None:
        super().__init__()
        self.series = nn.Embedding(369, size)
        self.contexts = nn.ModuleList(Gated(size, size) for _ in range(4))
        self.past, self.future = Selection(past, size), Selection(future, size)
        self.encoder = nn.LSTM(size, size, batch_first=True)
        self.decoder = nn.LSTM(size, size, batch_first=True)
        self.enrich, self.forth = Gated(size, size, size), Gated(size, size)
        self.attend = nn.MultiheadAttention(size, heads, batch_first=True)
        self.gates = nn.ModuleList(_gate(size) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.score = nn.Linear(size, 3)

    def _joined(self, which: int, x: Tensor, y: Tensor) -> Tensor:
        return self.norms[which](x + self.gates[which](y))

    def forward(self, past: Tensor, future: Tensor, series: Tensor) -> Tensor:
        """Three quantiles (N, steps of the future, 3)."""
        choose, h, c, enrich = (one(self.series(series)) for one in self.contexts)
        seen = self.past(past, choose.unsqueeze(1))
        known = self.future(future, choose.unsqueeze(1))
        before, state = self.encoder(seen, (h.unsqueeze(0), c.unsqueeze(0)))
        after, _ = self.decoder(known, state)
        local = self._joined(0, torch.cat([seen, known], dim=1), torch.cat([before, after], dim=1))
        x = self.enrich(local, enrich.unsqueeze(1))
        steps = torch.arange(x.shape[1], device=x.device)
        later = steps > steps[:, None]
        y, _ = self.attend(x, x, x, attn_mask=later, need_weights=False)
        y = self.forth(self._joined(1, x, y))
        return self.score(self._joined(2, local, y)[:, past.shape[1] :])


class Translator(nn.Module):
    """An encoder in both directions, and a decoder that looks at all of its states in each step."""

    def __init__(self, words: int = 8000, size: int = 256, hidden: int = 256) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, size), nn.Embedding(words, size)
        self.encoder = nn.GRU(size, hidden, bidirectional=True)
        self.bridge, self.attend = nn.Linear(2 * hidden, hidden), nn.Linear(3 * hidden, hidden)
        self.weight, self.cell = nn.Linear(hidden, 1), nn.GRUCell(size + 2 * hidden, hidden)
        self.score = nn.Linear(hidden, words)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Scores (T, N, words) of the next words."""
        states, last = self.encoder(self.source(x))
        h = torch.tanh(self.bridge(torch.cat([*last], dim=1)))
        outputs = []
        for word in self.target(y):
            seen = torch.cat([h.expand(len(states), *h.shape), states], dim=2)
            share = torch.softmax(self.weight(torch.tanh(self.attend(seen))), dim=0)
            h = self.cell(torch.cat([word, (share * states).sum(dim=0)], dim=1), h)
            outputs.append(h)
        return self.score(torch.stack(outputs))


class TextLines(nn.Module):
    """CRNN: convolutions over a line of text, then two layers of LSTM in both directions."""

    def __init__(self, classes: int = 37) -> None:
        super().__init__()
        pool, tall = nn.MaxPool2d(2), nn.MaxPool2d((2, 1))
        self.look = nn.Sequential(
            _block(1, 64), pool, _block(64, 128), pool, _block(128, 256), _block(256, 256), tall,
            _block(256, 512), _block(512, 512), tall, _block(512, 512, 2, 0),
        )  # fmt: skip
        self.read, self.score = nn.LSTM(512, 256, 2, bidirectional=True), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (T, N, classes)."""
        seen = self.look(x)  # (N, 512, 1, T)
        return self.score(self.read(seen.squeeze(2).permute(2, 0, 1))[0])


# --- images


def _block(given: int, made: int, kernel: int = 3, pad: int | None = None, stride: int = 1) -> nn.Sequential:
    """A convolution without a bias, a normalization, ReLU."""
    pad = kernel // 2 if pad is None else pad
    return nn.Sequential(
        nn.Conv2d(given, made, kernel, stride, pad, bias=False), nn.BatchNorm2d(made), nn.ReLU()
    )


class Residual(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = _block(given, made, stride=stride)
        self.second = nn.Sequential(nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made))
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or given != made:
            self.skip = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both paths."""
        return torch.relu(self.second(self.first(x)) + self.skip(x))


def _resnet() -> nn.Module:
    layers: list[nn.Module] = [_block(3, 64, 7, 3, 2), nn.MaxPool2d(3, 2, 1)]
    given = 64
    for made, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(given, made, stride), Residual(made, made, 1)]
        given = made
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Inverted(nn.Module):
    """A block of MobileNet: wider, a convolution of each channel, narrower."""

    def __init__(self, given: int, wide: int, made: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide), nn.Hardswish(),
            nn.Conv2d(wide, made, 1, bias=False), nn.BatchNorm2d(made),
        )  # fmt: skip
        self.adds = stride == 1 and given == made

    def forward(self, x: Tensor) -> Tensor:
        """The block's result, plus the input if it has the same shape."""
        return self.body(x) + x if self.adds else self.body(x)


def _mobilenet() -> nn.Module:
    """MobileNetV3-Large, without its squeezes."""
    rows = [
        (16, 16, 3, 1), (64, 24, 3, 2), (72, 24, 3, 1), (72, 40, 5, 2), (120, 40, 5, 1), (120, 40, 5, 1),
        (240, 80, 3, 2), (200, 80, 3, 1), (184, 80, 3, 1), (184, 80, 3, 1), (480, 112, 3, 1),
        (672, 112, 3, 1), (672, 160, 5, 2), (960, 160, 5, 1), (960, 160, 5, 1),
    ]  # fmt: skip
    layers, given = [_block(3, 16, stride=2)], 16
    blocks: list[nn.Module] = []
    for wide, made, kernel, stride in rows:
        blocks.append(Inverted(given, wide, made, kernel, stride))
        given = made
    return nn.Sequential(
        *layers, *blocks, _block(160, 960, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1000)
    )


class Wide(nn.Module):
    """A block of ConvNeXt: a large kernel on each channel, then two layers on all of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's result plus the input."""
        y = self.mix(self.norm(self.spread(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)


def _convnext() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4)]
    for channels, count in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if channels > 96:
            layers.append(nn.Conv2d(channels // 2, channels, 2, 2))
        layers += [Wide(channels) for _ in range(count)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000))


class UNet(nn.Module):
    """Down and up again, with the images of the way down joined to the way up; in two or three axes."""

    def __init__(self, axes: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        conv = nn.Conv2d if axes == 2 else nn.Conv3d
        up = nn.ConvTranspose2d if axes == 2 else nn.ConvTranspose3d
        norm = nn.BatchNorm2d if axes == 2 else nn.BatchNorm3d
        self.pool = nn.MaxPool2d(2) if axes == 2 else nn.MaxPool3d(2)

        def twice(given: int, made: int) -> nn.Module:
            return nn.Sequential(
                conv(given, made, 3, padding=1), norm(made), nn.ReLU(),
                conv(made, made, 3, padding=1), norm(made), nn.ReLU(),
            )  # fmt: skip

        pairs = [*itertools.pairwise(channels)]
        self.down = nn.ModuleList(twice(a, b) for a, b in zip((1, *channels), channels, strict=False))
        self.up = nn.ModuleList(up(b, a, 2, 2) for a, b in reversed(pairs))
        self.join = nn.ModuleList(twice(2 * a, a) for a, _ in reversed(pairs))
        self.score = conv(channels[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of two classes for each element."""
        kept = []
        for layer in self.down[:-1]:
            x = layer(x)
            kept.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], dim=1))
        return self.score(x)


class Adversaries(nn.Module):
    """DCGAN: the discriminator, applied to the generator's images from noise."""

    def __init__(self) -> None:
        super().__init__()
        made: list[nn.Module] = []
        for given, out, stride, pad in (
            (100, 512, 1, 0),
            (512, 256, 2, 1),
            (256, 128, 2, 1),
            (128, 64, 2, 1),
        ):
            made += [nn.ConvTranspose2d(given, out, 4, stride, pad), nn.BatchNorm2d(out), nn.ReLU()]
        self.generator = nn.Sequential(*made, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())
        seen: list[nn.Module] = []
        for given, out in ((3, 64), (64, 128), (128, 256), (256, 512)):
            seen += [nn.Conv2d(given, out, 4, 2, 1), nn.BatchNorm2d(out), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*seen, nn.Conv2d(512, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        """A score for each image."""
        return self.discriminator(self.generator(x))


def _digits() -> nn.Module:
    """The network of PyTorch's first example, without dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(12), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


# --- signals


class Dilated(nn.Module):
    """A block of TCN: two convolutions that look back only."""

    def __init__(self, given: int, made: int, dilation: int) -> None:
        super().__init__()
        self.reach = 2 * dilation
        self.first = nn.Conv1d(given, made, 3, padding=self.reach, dilation=dilation)
        self.second = nn.Conv1d(made, made, 3, padding=self.reach, dilation=dilation)
        self.skip = nn.Conv1d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """As long as it was."""
        y = torch.relu(self.first(x)[..., : -self.reach])
        return torch.relu(torch.relu(self.second(y)[..., : -self.reach]) + self.skip(x))


def _tcn() -> nn.Module:
    return nn.Sequential(
        Dilated(1, 25, 1), *(Dilated(25, 25, 2**k) for k in range(1, 8)), nn.Conv1d(25, 10, 1)
    )


class Inception(nn.Module):
    """A block of InceptionTime: three lengths of kernels, and the largest of three elements."""

    def __init__(self, given: int) -> None:
        super().__init__()
        self.narrow = nn.Conv1d(given, 32, 1, bias=False) if given > 1 else nn.Identity()
        inner = 32 if given > 1 else 1
        self.each = nn.ModuleList(nn.Conv1d(inner, 32, k, padding=k // 2, bias=False) for k in (39, 19, 9))
        self.pooled = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(given, 32, 1, bias=False))
        self.norm = nn.BatchNorm1d(128)

    def forward(self, x: Tensor) -> Tensor:
        """128 channels, as long as before."""
        narrow = self.narrow(x)
        return torch.relu(self.norm(torch.cat([*(one(narrow) for one in self.each), self.pooled(x)], dim=1)))


class Separator(nn.Module):
    """Conv-TasNet: masks for two speakers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, 512, 16, 8, bias=False), nn.ConvTranspose1d(512, 1, 16, 8)
        blocks: list[nn.Module] = [nn.GroupNorm(1, 512), nn.Conv1d(512, 128, 1)]
        for k in (*range(8), *range(8)):
            blocks.append(_Mask(2**k))
        self.mask = nn.Sequential(*blocks, nn.PReLU(), nn.Conv1d(128, 1024, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Two signals (N, 2, T)."""
        coded = self.encode(x)
        masks = self.mask(coded).chunk(2, dim=1)
        return torch.cat([self.decode(coded * mask) for mask in masks], dim=1)


class _Mask(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(128, 512, 1), nn.PReLU(), nn.GroupNorm(1, 512),
            nn.Conv1d(512, 512, 3, padding=dilation, dilation=dilation, groups=512), nn.PReLU(),
            nn.GroupNorm(1, 512), nn.Conv1d(512, 128, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Vocoder(nn.Module):
    """HiFi-GAN's generator, version 2: a signal from 80 bands of its spectrum."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(80, 128, 7, padding=3)]
        channels = 128
        for factor, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
            layers += [
                nn.LeakyReLU(0.1),
                nn.ConvTranspose1d(channels, channels // 2, kernel, factor, (kernel - factor) // 2),
                _Fused(channels // 2),
            ]
            channels //= 2
        self.layers = nn.Sequential(*layers, nn.LeakyReLU(), nn.Conv1d(channels, 1, 7, padding=3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """The signal (N, 1, 256 T)."""
        return self.layers(x)


class _Fused(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList(
            nn.Sequential(*(
                layer
                for d in (1, 3, 5)
                for layer in (nn.LeakyReLU(0.1), nn.Conv1d(channels, channels, k, 1, d * (k - 1) // 2, d))
            ))
            for k in (3, 7, 11)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return sum((x + way(x) for way in self.ways), torch.zeros((), dtype=x.dtype)) / 3


def _words(T: int, N: int, words: int = 10_000) -> Tensor:
    return torch.randint(words, (T, N))


def _sentences(number: int) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(5, 51 + number % 16, (32,))
    return torch.randint(20_000, (32, int(lengths.max()))), lengths


WORKS: dict[str, Work] = {
    "word LSTM 650, two layers (35x20)": Work(
        lambda: Words(nn.LSTM, 650, 2), lambda k: (_words(35 + k % 32, 20),)
    ),
    "word GRU 200 (35x20)": Work(lambda: Words(nn.GRU, 200, 1), lambda k: (_words(35 + k % 32, 20),)),
    "BiLSTM tagger, packed (32)": Work(Tagger, _sentences),
    "IMDB BiLSTM (32x200)": Work(Reviews, lambda k: (torch.randint(20_000, (32, 200 + k % 64)),)),
    "GRU4Rec (50x20)": Work(lambda: Words(nn.GRU, 100, 1, 3000), lambda k: (_words(20 + k % 32, 50, 3000),)),
    "DeepAR (32x168)": Work(Forecaster, lambda k: (torch.randn(32, 168 + k % 64, 8),)),
    "TFT 160 (64x168+24)": Work(
        Fusion,
        lambda k: (torch.randn(64, 168 + k % 64, 4), torch.randn(64, 24, 3), torch.randint(369, (64,))),
    ),
    "seq2seq with attention (32x12)": Work(
        Translator, lambda k: (_words(12 + k % 16, 32, 8000), _words(12 + k % 13, 32, 8000))
    ),
    "CRNN (16x32x100)": Work(TextLines, lambda k: (torch.randn(16, 1, 32, 100 + 4 * (k % 32)),)),
    "ResNet-18 (8x224)": Work(_resnet, lambda k: (torch.randn(8, 3, 224 + 8 * (k % 8), 224),)),
    "MobileNetV3 (8x224)": Work(_mobilenet, lambda k: (torch.randn(8, 3, 224 + 8 * (k % 8), 224),)),
    "ConvNeXt-tiny (2x224)": Work(_convnext, lambda k: (torch.randn(2, 3, 224 + 32 * (k % 4), 224),)),
    "U-Net (2x128)": Work(
        lambda: UNet(2, (32, 64, 128, 256, 512)), lambda k: (torch.randn(2, 1, 128 + 16 * (k % 8), 128),)
    ),
    "U-Net in three axes (1x64)": Work(
        lambda: UNet(3, (16, 32, 64, 128)), lambda k: (torch.randn(1, 1, 64 + 8 * (k % 4), 64, 64),)
    ),
    "DCGAN (16x64)": Work(Adversaries, lambda k: (torch.randn(16 + k % 8, 100, 1, 1),)),
    "MNIST network (64)": Work(_digits, lambda k: (torch.randn(64 + k % 16, 1, 28, 28),)),
    "TCN (32x784)": Work(_tcn, lambda k: (torch.randn(32, 1, 784 + k % 64),)),
    "InceptionTime (32x256)": Work(
        lambda: nn.Sequential(Inception(1), *(Inception(128) for _ in range(5)), nn.Conv1d(128, 5, 1)),
        lambda k: (torch.randn(32, 1, 256 + k % 64),),
    ),
    "Conv-TasNet (1x16000)": Work(Separator, lambda k: (torch.randn(1, 1, 16_000 + 800 * (k % 16)),)),
    "HiFi-GAN V2 (4x32)": Work(Vocoder, lambda k: (torch.randn(4, 80, 32 + k % 32),)),
}
"""By the network's name, with the shape of its batch."""
