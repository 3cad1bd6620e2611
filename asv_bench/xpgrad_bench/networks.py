"""The convolutions of published networks, each size once: as works, by the network's name.

Sizes are from the papers and from torchvision's models at 224 x 224 in batches of 8, unless the name says
more. A network lists the layers that no network before it has.

References
----------
He and others, "Deep residual learning" (2015). Simonyan and Zisserman, "Very deep convolutional networks"
(2014). Howard and others, "Searching for MobileNetV3" (2019). Liu and others, "A ConvNet for the 2020s"
(2022). Radford, Metz and Chintala, "Unsupervised representation learning" (2015), for DCGAN. Ronneberger,
Fischer and Brox, "U-Net" (2015). Luo and Mesgarani, "Conv-TasNet" (2018). Kong, Kim and Bae, "HiFi-GAN"
(2020). Baevski and others, "wav2vec 2.0" (2020). Fawaz and others, "InceptionTime" (2019). Krizhevsky, "One
weird trick for parallelizing convolutional neural networks" (2014), for AlexNet. Chen and others, "Rethinking
atrous convolution" (2017), for DeepLabV3. Ballé and others, "Variational image compression with a scale
hyperprior" (2018).
"""

from collections.abc import Iterator

from .convolutions import Convolution


def _images(
    N: int,
    *layers: tuple[int, int, int, int, int],
    stride: int = 1,
    group: bool = False,
    transposed: bool = False,
    dilation: int = 1,
) -> Iterator[Convolution]:
    """Convolutions of square images, from (C, size, O, kernel, pad)."""
    for C, size, O, kernel, pad in layers:
        groups = C if group else 1
        yield Convolution(N, C, (size, size), O, kernel, stride, pad, groups, transposed, dilation=dilation)


def _pointwise(N: int, *layers: tuple[int, int, int], stride: int = 1) -> Iterator[Convolution]:
    """Of one element, from (C, size, O)."""
    return _images(N, *((C, size, O, 1, 0) for C, size, O in layers), stride=stride)


def _depthwise(N: int, kernel: int, *layers: tuple[int, int], stride: int = 1) -> Iterator[Convolution]:
    """From (C, size)."""
    return _images(N, *((C, size, C, kernel, kernel // 2) for C, size in layers), stride=stride, group=True)


def _signals(
    N: int, *layers: tuple[int, int, int, int], stride: int = 1, dilation: int = 1, group: bool = False
) -> Iterator[Convolution]:
    """Convolutions over time, from (C, T, O, kernel), as long as their inputs if the stride is 1."""
    for C, T, O, kernel in layers:
        pad = dilation * (kernel - 1) // 2 if stride == 1 else 0
        yield Convolution(N, C, (T,), O, kernel, stride, pad, C if group else 1, dilation=dilation)


def _volumes(N: int, *layers: tuple[int, int, int], stride: int = 1) -> Iterator[Convolution]:
    """3 x 3 x 3, from (C, size, O)."""
    for C, size, O in layers:
        yield Convolution(N, C, (size, size, size), O, 3, stride, 1)


NETWORKS: dict[str, tuple[Convolution, ...]] = {
    "ResNet-18": (
        *_images(8, (3, 224, 64, 7, 3), stride=2),
        *_images(8, (64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1)),
        *_images(8, (64, 56, 128, 3, 1), (128, 28, 256, 3, 1), (256, 14, 512, 3, 1), stride=2),
        *_pointwise(8, (64, 56, 128), (128, 28, 256), (256, 14, 512), stride=2),
    ),
    "ResNet-50": (
        *_pointwise(
            8, (64, 56, 64), (64, 56, 256), (256, 56, 64), (256, 56, 128), (128, 28, 512), (512, 28, 128)
        ),
        *_pointwise(8, (512, 28, 256), (256, 14, 1024), (1024, 14, 256), (1024, 14, 512), (512, 7, 2048)),
        *_pointwise(8, (2048, 7, 512)),
        *_pointwise(8, (256, 56, 512), (512, 28, 1024), (1024, 14, 2048), stride=2),
        *_images(8, (128, 56, 128, 3, 1), (256, 28, 256, 3, 1), (512, 14, 512, 3, 1), stride=2),
    ),
    "VGG-16": (
        *_images(8, (3, 224, 64, 3, 1), (64, 224, 64, 3, 1), (64, 112, 128, 3, 1), (128, 112, 128, 3, 1)),
        *_images(8, (128, 56, 256, 3, 1), (256, 56, 256, 3, 1), (256, 28, 512, 3, 1), (512, 28, 512, 3, 1)),
        *_images(8, (512, 14, 512, 3, 1)),
    ),
    "MobileNetV3": (
        *_images(8, (3, 224, 16, 3, 1), stride=2),
        *_pointwise(8, (16, 112, 16), (16, 112, 64), (64, 56, 24), (24, 56, 72), (72, 56, 24), (72, 28, 40)),
        *_pointwise(
            8, (40, 28, 120), (120, 28, 40), (40, 28, 240), (240, 14, 80), (80, 14, 200), (200, 14, 80)
        ),
        *_pointwise(
            8, (80, 14, 480), (480, 14, 112), (112, 14, 672), (672, 7, 160), (160, 7, 960), (960, 7, 160)
        ),
        *_depthwise(8, 3, (16, 112), (72, 56), (200, 14), (480, 14), (672, 14)),
        *_depthwise(8, 3, (64, 112), (240, 28), stride=2),
        *_depthwise(8, 5, (120, 28), (960, 7)),
        *_depthwise(8, 5, (72, 56), (672, 14), stride=2),
    ),
    "ConvNeXt-T": (
        *_images(8, (3, 224, 96, 4, 0), stride=4),
        *_depthwise(8, 7, (96, 56), (192, 28), (384, 14), (768, 7)),
        *_images(8, (96, 56, 192, 2, 0), (192, 28, 384, 2, 0), (384, 14, 768, 2, 0), stride=2),
    ),
    "DCGAN (16 x 64)": (
        *_images(
            16, (3, 64, 64, 4, 1), (64, 32, 128, 4, 1), (128, 16, 256, 4, 1), (256, 8, 512, 4, 1), stride=2
        ),
        *_images(16, (512, 4, 1, 4, 0)),
        *_images(16, (100, 1, 512, 4, 0), transposed=True),
        *_images(16, (512, 4, 256, 4, 1), (256, 8, 128, 4, 1), stride=2, transposed=True),
        *_images(16, (128, 16, 64, 4, 1), (64, 32, 3, 4, 1), stride=2, transposed=True),
    ),
    "MNIST network (64 x 28)": (*_images(64, (1, 28, 32, 3, 0), (32, 26, 64, 3, 0)),),
    "AlexNet": (
        *_images(8, (3, 224, 64, 11, 2), stride=4),
        *_images(8, (64, 27, 192, 5, 2), (192, 13, 384, 3, 1), (384, 13, 256, 3, 1), (256, 13, 256, 3, 1)),
    ),
    "DeepLabV3 (2 x 257)": (
        *_images(2, (256, 33, 256, 3, 2), dilation=2),
        *_images(2, (512, 33, 512, 3, 4), dilation=4),
        *_images(2, (2048, 33, 256, 3, 12), dilation=12),
        *_images(2, (2048, 33, 256, 3, 24), dilation=24),
    ),
    "Image compression (4 x 256)": (
        *_images(4, (3, 256, 128, 5, 2), (128, 128, 128, 5, 2), (128, 64, 128, 5, 2), stride=2),
        *_images(4, (128, 32, 192, 5, 2), stride=2),
    ),
    "U-Net (4 x 256)": (
        *_images(4, (3, 256, 32, 3, 1), (32, 256, 32, 3, 1), (64, 128, 64, 3, 1), (128, 64, 128, 3, 1)),
        *_images(4, (256, 32, 256, 3, 1), (1024, 16, 1024, 3, 1), (1024, 32, 512, 3, 1)),
        *_images(4, (256, 32, 128, 2, 0), (64, 128, 32, 2, 0), stride=2, transposed=True),
    ),
    "U-Net, 3-D (2 x 64)": (
        *_volumes(2, (1, 64, 16), (16, 32, 32), (32, 16, 64), (64, 8, 128), stride=2),
        *_volumes(2, (16, 32, 16), (32, 16, 32), (64, 8, 64)),
    ),
    "Conv-TasNet (2 x 32000)": (
        *_signals(2, (1, 32000, 512, 16), stride=8),
        *_signals(2, (128, 3999, 512, 1), (512, 3999, 128, 1)),
        *_signals(2, (512, 3999, 512, 3), group=True),
        *_signals(2, (512, 3999, 512, 3), dilation=16, group=True),
    ),
    "HiFi-GAN (4 x 32)": (
        *_signals(4, (80, 32, 512, 7), (256, 256, 256, 3), (256, 256, 256, 7), (256, 256, 256, 11)),
        *_signals(4, (64, 4096, 64, 3), (32, 8192, 32, 11), (32, 8192, 1, 7)),
        *_signals(4, (256, 256, 256, 3), (128, 2048, 128, 7), dilation=5),
    ),
    "wav2vec 2.0 (2 x 32000)": (
        *_signals(2, (1, 32000, 512, 10), stride=5),
        *_signals(2, (512, 6399, 512, 3), (512, 400, 512, 2), stride=2),
    ),
    "InceptionTime (16 x 500)": (
        *_signals(16, (32, 500, 32, 9), (32, 500, 32, 19), (32, 500, 32, 39), (128, 500, 32, 1)),
    ),
    "TCN (16 x 400)": (
        *_signals(16, (25, 400, 25, 7)),
        *_signals(16, (25, 400, 25, 7), dilation=8),
    ),
}
