"""Records: what compiled code reads from 64-bit integers, each declared once, for the writer and the reader.

Python writes ``flat(Record(...))``. Compiled code reads ``data[FIELDS.name]``, where ``FIELDS`` is
``positions(Record)``; a record that begins elsewhere is read as ``data[begin + FIELDS.name]``. A field that
holds a record stands as that record's fields. Addresses are numbers here, or what a program replaces by one.

The record of an object that has a class of its own ends in Record: compiled code reads an
`instructions.Work` from a `WorkRecord`.

Nothing here needs llvmlite.
"""

import itertools
from collections import namedtuple
from collections.abc import Iterator
from typing import Any, TypeVar

_Record = TypeVar("_Record", bound=tuple)
_within: dict[Any, dict[int, type[tuple]]] = {}  # by record and place the records in it, the last one first


def holds(record: Any, **parts: type[tuple]) -> None:
    """Say which of a record's fields are records themselves."""
    places = {record._fields.index(name): part for name, part in parts.items()}
    _within[record] = dict(sorted(places.items(), reverse=True))


def parts_of(record: Any) -> list[type[tuple] | None]:
    """Of each field the record that it holds; None for an integer."""
    return [_within.get(record, {}).get(place) for place in range(len(record._fields))]


def flat(record: tuple) -> list[Any]:
    """The integers of a record, one behind the other; for one without records in it ``[*record]`` does."""
    values = list(record)
    for place in _within.get(type(record), ()):
        values[place : place + 1] = flat(values[place])
    return values


def positions(record: type[_Record]) -> _Record:
    """The record with the place of each field in place of its value."""
    return _numbered(record, itertools.count())


def length(record: type[tuple]) -> int:
    """How many integers a record has."""
    numbers = itertools.count()
    _numbered(record, numbers)
    return next(numbers)


def _numbered(record: Any, numbers: Iterator[int]) -> Any:
    return record(*(next(numbers) if part is None else _numbered(part, numbers) for part in parts_of(record)))


# --- arrays

Strided = namedtuple("Strided", "address outer row column")
"""An array of up to three axes: its first element, and the strides of each axis, in elements."""

Rows = namedtuple("Rows", "address rows columns line")
"""A matrix whose columns follow one another; `line` is the length of a whole row."""

Panels = namedtuple("Panels", "address rows columns count")
"""A time loop's weight in panels: `count` matrices of so many rows and columns, one behind the other.

It stands between matrices that are Rows, and has as many integers.
"""

RowsProduct = namedtuple("RowsProduct", "source weight target")
"""What a time loop's product is of: rows of the source times the weight, into rows of the target."""
holds(RowsProduct, source=Rows, weight=Panels, target=Rows)

Ahead = namedtuple("Ahead", "place end step next left products")
"""Memory that a product asks for ahead: the next byte of a range, its end, the bytes from pass to pass.

`next` is the address of the next range, and `left` says how many are left. `products` says by how many
products of equal size they are to be asked for, and is 0 from the first of these on. The ranges follow:
the first byte and the number of bytes.
"""

Factor = namedtuple("Factor", "address row column")
"""A matrix of a product: its first element, and the distances of its rows and of its columns."""


# --- time loops and array loops: in front of the arrays

LoopHead = namedtuple("LoopHead", "steps spans bounds tiles by_panels height lanes parts stages step stage")
"""A time loop: its steps, the bounds of its parts, and what its products need.

`spans` is the address of four integers for each step (`formulas.formula.Span`), `bounds` that of the
first rows of the parts. For `tiles` to `lanes` see `products.matrix.Functions`.

Where the parts have columns instead of rows, `parts` is how many they are, and a call of the loop does
one of the `stages` of one step: `stage` of `step`.
"""

ArraysHead = namedtuple("ArraysHead", "bounds numbers")
"""A loop over arrays: the addresses of its parts' bounds and of the formula's numbers."""


# --- instructions of a program

ProgramHead = namedtuple("ProgramHead", "team share guard steps")
"""What stands in front of all instructions: a team's entry point, native.share_parts.

`guard` is the address of a Guard, or 0. `steps` is the call's T where calls with different ones share the
program, else 0.
"""

InstructionHead = namedtuple("InstructionHead", "length kind")
"""What stands in front of an instruction's record: how many integers it has in all, and a Kind."""

Kind = namedtuple("Kind", "work steps")
"""What an instruction is, by the place in this list."""

ArithmeticKind = namedtuple(
    "ArithmeticKind",
    "zero copy add multiply root column_sums column_sums_of_products",
)
"""What `instructions.arithmetic` computes, by the place in this list."""

MoveKind = namedtuple("MoveKind", "pack unpack turn previous sort unsort last")
"""What `schedule.move_rows` moves, by the place in this list: rows over time, then those of states."""

SharedWork = namedtuple("SharedWork", "function data parts team_first team_second")
"""A compiled ``function(data, part)`` that is run in parts by the threads of a team.

The last two are for the team: the addresses of OpenMP's ``omp_get_thread_num`` and
``omp_get_num_threads``, or that of a HostWords and of `native_foreign.task`.
"""

SystemCalls = namedtuple("SystemCalls", "malloc free give_way advise page")
"""Addresses of functions of the operating system, 0 for each that it lacks; see `compiled.system_calls`.

They are ``malloc(size)``, ``free(address)``, ``sched_yield()`` and ``madvise(address, size, advice)``.
`page` is the number of bytes of a page of memory.
"""

WorkRecord = namedtuple("WorkRecord", "address shared")
"""An instruction that is a function of its own; `address` is where `shared` stands."""
holds(WorkRecord, shared=SharedWork)

Shares = namedtuple("Shares", "code bounds")
"""Instructions that threads run, each those of its share: ``bounds[share]`` is where they begin in `code`."""

Packing = namedtuple("Packing", "pack parts k n source target count apart")
"""Matrices (k, n) packed into panels, some of them in each part.

For the first one see `products.matrix.Functions`. From one of the `count` matrices to the next there are
`apart` elements.
"""
holds(Packing, source=Factor)

ProductRecord = namedtuple(
    "ProductRecord",
    "tiles pack by_panels m n k add by_rows parts c c_line a b memory bytes columns",
)
"""A product of our own; see `products.matrix.ProductPlan`."""
holds(ProductRecord, a=Factor, b=Factor)

Products = namedtuple("Products", "multiply count parts c a b first")
"""Products of a stack of matrices: how many, the distances from one to the next, and the first one."""
holds(Products, first=ProductRecord)

ArithmeticRecord = namedtuple("ArithmeticRecord", "kind parts planes rows columns target first second")
"""Arithmetic on arrays of one shape; see `programs.instructions.arithmetic`."""
holds(ArithmeticRecord, target=Strided, first=Strided, second=Strided)


# --- images

Batch = namedtuple("Batch", "address image channel")
"""Images: the first element, and the distances from one image and from one channel to the next."""

Table = namedtuple("Table", "address rows")
"""Rows of integers: where they begin, and how many there are."""

Shared = namedtuple("Shared", "bounds memory bytes")
"""Items in parts: the address of each part's first item, and memory, so many bytes for each part."""

ShiftedSums = namedtuple(
    "ShiftedSums",
    "shared images rows groups channels_in sums panel_rows parts taps wanted weights bias results begin end "
    "stretch stretches room grid line",
)
"""Weighted sums of shifted images; see `images.compiled_shifts`.

An item is a stretch of a group of an image; where loops are over positions, a stretch is a whole image.
A part's memory begins with the grid, each channel `room` elements long; behind it are the sums, in rows
of `line`. The packed weights of a group have `panel_rows` rows.
"""
holds(ShiftedSums, shared=Shared, images=Batch, rows=Table, parts=Table, results=Batch)

ShiftedProducts = namedtuple(
    "ShiftedProducts",
    "shared a a_rows images rows count groups channels_in sums taps length stretch stretches room grid "
    "results",
)
"""Inner products of images with shifted images; items are ordered by group, and parts have own results.

`count` is the number of images; for the others see ShiftedSums.
"""
holds(ShiftedProducts, shared=Shared, a=Batch, a_rows=Table, images=Batch, rows=Table, taps=Table)

TapPacking = namedtuple(
    "TapPacking",
    "parts weights by_group by_sum by_channel_in by_tap groups sums panel_rows channels_in taps count target",
)
"""Weights with these distances in memory, of `count` taps, into panels, some of them in each part.

A panel has the weights of some of a group's sums; a group's panels have `panel_rows` rows. See
`compiled_shifts`.
"""

PatchRows = namedtuple(
    "PatchRows", "parts images count channels size rows taps positions columns patches bias begins"
)
"""Rows of images that are rows of patches; each part has some channels of some images.

`rows` is a table as in `native_shifts`. A channel has as many rows of patches as there are `taps`, each with
`columns` elements, `positions` for each of `count` images. `begins` says whether memory is set first: patches
to zeros, images to the bias.
"""
holds(PatchRows, images=Batch, rows=Table)

WindowImages = namedtuple(
    "WindowImages", "address count slices channels height width by_image by_slice by_channel by_row"
)
"""Images whose rows' elements follow one another: their address, sizes, and distances in elements.

A volume has as many images as slices; otherwise `slices` is 1.
"""

WindowPoints = namedtuple("WindowPoints", "address by_point by_line by_phase rows columns")
"""Transformed windows, contiguous along the last axis: address, distances, rows and columns of them."""

FromWindows = namedtuple("FromWindows", "parts images top left points")
"""Windows of images, the first one so far above and left of them; each part has some of the channels."""
holds(FromWindows, images=WindowImages, points=WindowPoints)

ToWindows = namedtuple("ToWindows", "parts points bias images")
"""Images of windows, with a bias for each channel; each part has some of the channels."""
holds(ToWindows, points=WindowPoints, images=WindowImages)

RowSums = namedtuple("RowSums", "rows count width sums parts")
"""The sums of the rows of a matrix (count, width)."""


# --- what a guard finds

Finding = namedtuple("Finding", "instruction kind which low high")
"""What a guard found: after, or before, instruction number ``instruction - 1``; 0 for nothing.

`kind` is a FindingKind, `which` the number in the guard's list of that kind, `low` and `high` are the
first and the last wrong byte, or the wrong number and what it should be at most.
"""

FindingKind = namedtuple("FindingKind", "zone quantity table rows")
"""What is wrong, by the place in this list."""


# --- programs in the threads of a host

HostWords = namedtuple("HostWords", "schedule host crew")
"""A host that runs a program: ``schedule(host, task, data)``, what that takes first, and the run's crew.

`schedule` is the address of a C function that returns 0 where the host will run the task some time.
"""

WaitingRecord = namedtuple("WaitingRecord", "post wait semaphore tasks places")
"""Threads that wait for tasks: the addresses of ``sem_post``, of ``sem_wait`` and of a semaphore.

There are `places` for the data of tasks, from the address `tasks` on; 0 stands where there is none.
"""

ForeignProgramRecord = namedtuple(
    "ForeignProgramRecord",
    "code code_length where memory places arena executor begin end slots count guard finding",
)
"""A program for a host.

`code` has `code_length` integers. ``code[where[k]]`` is an offset into memory number ``memory[k]`` of the
host. `arena` is in bytes; `executor` runs the instructions from
`begin` to `end`; `slots` are arenas that wait; `count` is how many memories the host brings. `guard` is
where a Guard stands in the code, or 0; its Finding is copied to `finding`.
"""
holds(ForeignProgramRecord, finding=Finding)


# --- sequences of uneven lengths

Quantities = namedtuple("Quantities", "zero rows padded steps first later")
"""Integers that the lengths of a batch decide; every table of them begins so.

`padded` is T, and `steps` the largest length; `first` is 1 where there is a step, and `later` how many
come after it.
"""

ChunkQuantities = namedtuple(
    "ChunkQuantities",
    "low middle high start count later first later_place first_place",
)
"""Those of a chunk: its steps from `low` up to `high`, and its rows, `count` from `start` on.

Steps before `middle` are the very first one. Of these and of the later ones it has the number, and the
place among all steps from last to first.
"""

Tables = namedtuple("Tables", "batch steps resets tables order ordered place starts marks reverse_marks")
"""What is known of a batch: its sizes, and where in the memory `tables` each table begins.

Parameters
----------
batch, steps
    N and T.
resets
    1 where sequences have resets, 2 where all of them have T steps besides, else 0.
tables
    The memory.
order, ordered
    Of each place in the batch, from long to short: the sequence and its length.
place
    Of each sequence its place.
starts
    The first row of each step.
marks, reverse_marks
    Of each row where sequences have resets, for time forwards and backwards: `NOTHING_BEFORE` and
    `NOTHING_AFTER`, or their sum. A place below 0 stands for a table that nobody needs.
"""


# Of a row, whether a reset cuts it off from the step before it in the time loop, and from the step after it.
NOTHING_BEFORE, NOTHING_AFTER = 1, 2

ChunkRequest = namedtuple("ChunkRequest", "limit most is_turned quantities spans")
"""Chunks of about `limit` rows, `most` of them: where their quantities and their table of steps begin.

`is_turned` says that rows have the order of time, and steps run against it.
"""

CutRequest = namedtuple("CutRequest", "parts low high table")
"""The cuts between so many parts, of the steps between two quantities: where their table begins."""

Addition = namedtuple("Addition", "place quantity factor kept")
"""A quantity times a factor, added to one of a program's integers; or in its place, where `kept` is 0."""

ScheduleRecord = namedtuple(
    "ScheduleRecord",
    "lengths known spans turned_spans quantities code additions addition_count chunk_count cut_count",
)
"""What finds the tables; its requests follow, those for chunks and then those for cuts.

A place below 0 stands for a table that nobody needs.
"""
holds(ScheduleRecord, known=Tables)

MoveRowsRecord = namedtuple(
    "MoveRowsRecord",
    "kind parts reverse known low high first is_turned steps width target source initial",
)
"""Rows brought into another order; see `programs.schedule.move_rows`."""
holds(MoveRowsRecord, known=Tables, target=Strided, source=Strided, initial=Strided)


# --- the guard

RedZone = namedtuple("RedZone", "address bytes first last")
"""Bytes that nobody may write, from instruction number `first` to number `last`."""

Unwritten = namedtuple("Unwritten", "address bytes first")
"""Memory that instruction number `first` is the first one to use."""

QuantityLimit = namedtuple("QuantityLimit", "number most")
"""The largest value that a quantity was planned for."""

RowsLimit = namedtuple("RowsLimit", "number head at one rows")
"""How many rows a matrix has that a time loop, instruction `number`, reads or writes.

`head` is the address of its LoopHead, `at` says which integer of a Span is the step's first row, `one`
whether it is the only one.
"""

Guard = namedtuple(
    "Guard",
    "zones zone_count unwritten unwritten_count limits limit_count rows row_count scheduled quantities "
    "tables finding",
)
"""What a program's instructions must leave alone: lists, each with its length, and what was found.

`scheduled` is the number of the instruction that finds the `quantities` and `tables`, or -1.
"""
holds(Guard, tables=Tables, finding=Finding)
