"""Records of 64-bit integers that compiled code reads, each declared once for its writer and its reader.

Python writes ``flat(Record(...))``. Compiled code reads ``data[FIELDS.name]``, where ``FIELDS`` is
``positions(Record)``, or ``data[begin + FIELDS.name]`` if the record begins elsewhere. A record in a field
stands as its fields. Addresses are numbers, or objects that a program replaces by numbers.

Names end in Record if the record describes an object of another class: a `WorkRecord` describes an
`instructions.Work`. Nothing here needs llvmlite.
"""

import itertools
from collections import namedtuple
from collections.abc import Iterator
from typing import Any, TypeVar

_Record = TypeVar("_Record", bound=tuple)
_within: dict[Any, dict[int, type[tuple]]] = {}  # the records in a record, by their places, the last first


def holds(record: Any, **parts: type[tuple]) -> None:
    """Declare which of a record's fields are records."""
    places = {record._fields.index(name): part for name, part in parts.items()}
    _within[record] = dict(sorted(places.items(), reverse=True))


def parts_of(record: Any) -> list[type[tuple] | None]:
    """The record in each field; None for an integer."""
    return [_within.get(record, {}).get(place) for place in range(len(record._fields))]


def flat(record: tuple) -> list[Any]:
    """The integers of a record; ``[*record]`` if no field is a record."""
    values = list(record)
    for place in _within.get(type(record), ()):
        values[place : place + 1] = flat(values[place])
    return values


def positions(record: type[_Record]) -> _Record:
    """The record with the place of each field as its value."""
    return _numbered(record, itertools.count())


def length(record: type[tuple]) -> int:
    """The number of integers of a record."""
    numbers = itertools.count()
    _numbered(record, numbers)
    return next(numbers)


def _numbered(record: Any, numbers: Iterator[int]) -> Any:
    return record(*(next(numbers) if part is None else _numbered(part, numbers) for part in parts_of(record)))


# --- arrays

Strided = namedtuple("Strided", "address outer row column")
"""An array of up to three axes: its first element, and the axes' strides in elements."""

Nested = namedtuple("Nested", "address slab block plane row column")
"""The same for up to five axes."""

Rows = namedtuple("Rows", "address rows columns line")
"""A matrix of contiguous rows; `line` is the distance of rows."""

Panels = namedtuple("Panels", "address rows columns count")
"""A time loop's weight in panels: `count` contiguous matrices. It has as many integers as Rows."""

RowsProduct = namedtuple("RowsProduct", "source weight target")
"""A time loop's product: rows of the source times the weight, into rows of the target."""
holds(RowsProduct, source=Rows, weight=Panels, target=Rows)

Ahead = namedtuple("Ahead", "place end step next left products")
"""Memory that a product prefetches: the next byte of a range, its end, the bytes from pass to pass.

`next` is the address of the next range, and `left` the number of ranges left. `products` is the number of
products of equal size that share the ranges; the first of them sets it to 0. The ranges follow: the first
byte and the number of bytes.
"""

Factor = namedtuple("Factor", "address row column")
"""A matrix of a product: its first element, and the distances of rows and of columns."""


# --- time loops and array loops: in front of the arrays

LoopHead = namedtuple(
    "LoopHead", "steps spans bounds tiles by_panels height lanes far parts stages step stage"
)
"""A time loop: the number of its steps, its parts, and the functions of its products.

`spans` is the address of the steps' Spans (`formulas.formula.Span`), `bounds` the address of the parts' first
rows. For `tiles` to `lanes` see `products.matrix.Functions`. Bit k of `far` says that the first product
prefetches number k of its `time_loops.PrefetchRows`. If threads share columns, `parts` is their number, and
each call runs stage `stage` of step `step`.
"""

ArraysHead = namedtuple("ArraysHead", "count parts")
"""A loop over arrays: the number of its rows or blocks, and of the equal parts for threads.

The loop's sizes, the arrays' addresses, and the formula's numbers as 64-bit reals follow.
"""

Lines = namedtuple("Lines", "address item line")
"""Elements of rows side by side: the first one, and the distances of items and of a row's elements."""

BESIDE = ("lines", "repeated")
"""The kinds of operands that only rows side by side have, see `arrays.LoopArray`."""

MOST_ROWS = 1024
"""The most rows side by side in a block: the loop over them has memory for so many."""


# --- instructions of a program

ProgramHead = namedtuple("ProgramHead", "team share guard steps")
"""The beginning of a program: the entry point of a team, and the address of native.share_parts.

`guard` is the address of a Guard, or 0. `steps` is the call's T if calls of several T share the program, else
0.
"""

InstructionHead = namedtuple("InstructionHead", "length kind")
"""The beginning of an instruction, before its record: its number of integers, and a Kind."""

Kind = namedtuple("Kind", "work steps")
"""The kind of an instruction, by its place in this list."""

ArithmeticKind = namedtuple(
    "ArithmeticKind",
    "zero copy add multiply root column_sums column_sums_of_products",
)
"""The operation of `instructions.arithmetic`, by its place in this list."""

MoveKind = namedtuple("MoveKind", "pack unpack turn previous sort unsort last")
"""The work of `schedule.move_rows`, by its place in this list: rows over time, then rows of states."""

SharedWork = namedtuple("SharedWork", "function data parts team_first team_second")
"""A compiled ``function(data, part)`` whose parts a team's threads run.

The last two are the addresses of OpenMP's ``omp_get_thread_num`` and ``omp_get_num_threads``, or of a
HostWords and of `native_foreign.task`.
"""

SystemCalls = namedtuple("SystemCalls", "malloc free give_way advise page")
"""Addresses of functions of the operating system, 0 for each that it lacks; see `compiled.machine_code`.

The functions are ``malloc(size)``, ``free(address)``, ``sched_yield()`` and
``madvise(address, size, advice)``. `page` is the number of bytes in a page of memory.
"""

WorkRecord = namedtuple("WorkRecord", "address shared")
"""An instruction that calls a function; `address` is the address of `shared`."""
holds(WorkRecord, shared=SharedWork)

RepetitionRecord = namedtuple("RepetitionRecord", "code begin end count moves")
"""Instructions from `begin` to `end` in `code`, `count` times.

The places of `moves` integers in the code follow, each with what is added to it after each time but the last.
"""

Shares = namedtuple("Shares", "code bounds")
"""Instructions that threads run, each those of its share: ``bounds[share]`` is where they begin in `code`."""

Packing = namedtuple("Packing", "pack parts k n source target count apart")
"""The packing of `count` matrices (k, n), `apart` elements from one to the next, in parts.

For `pack` see `products.matrix.Functions`.
"""
holds(Packing, source=Factor)

ProductRecord = namedtuple(
    "ProductRecord",
    "tiles pack by_panels m n k add by_rows parts c c_line a b memory bytes columns",
)
"""A compiled product; see `products.matrix.ProductPlan`."""
holds(ProductRecord, a=Factor, b=Factor)

Products = namedtuple("Products", "multiply count parts c a b first")
"""Products of a stack of matrices: their number, the distances of matrices, and the first product."""
holds(Products, first=ProductRecord)

ArithmeticRecord = namedtuple(
    "ArithmeticRecord", "kind parts slabs blocks planes rows columns target first second"
)
"""Arithmetic on arrays of one shape; see `programs.instructions.arithmetic`."""
holds(ArithmeticRecord, target=Nested, first=Nested, second=Nested)


# --- images

Batch = namedtuple("Batch", "address image channel")
"""Images: the first element, and the distances of images and of channels."""

Table = namedtuple("Table", "address rows")
"""Rows of integers: their address and their number."""

Shared = namedtuple("Shared", "bounds memory bytes")
"""Items in parts: the address of the parts' first items, and memory of `bytes` for each part."""

ShiftedSums = namedtuple(
    "ShiftedSums",
    "shared images rows groups channels_in sums panel_rows parts taps wanted weights bias results begin end "
    "stretch stretches room grid line",
)
"""Weighted sums of shifted images; see `images.compiled_shifts`.

An item is a stretch of a group of an image, a whole image if loops are over positions. A part's memory has
the grid, `room` elements for each channel, then the sums of a panel, in rows of `line`, and then the tile, if
its vectors have sums. The packed weights of a group have `panel_rows` rows.
"""
holds(ShiftedSums, shared=Shared, images=Batch, rows=Table, parts=Table, results=Batch)

ShiftedProducts = namedtuple(
    "ShiftedProducts",
    "shared a a_rows images rows count groups channels_in sums taps length stretch stretches room grid "
    "results",
)
"""Inner products of images with shifted images; items are ordered by group, and each part has results.

`count` is the number of images; for other fields see ShiftedSums.
"""
holds(ShiftedProducts, shared=Shared, a=Batch, a_rows=Table, images=Batch, rows=Table, taps=Table)

TapPacking = namedtuple(
    "TapPacking",
    "parts weights by_group by_sum by_channel_in by_tap groups sums panel_rows height channels_in taps count "
    "lines target",
)
"""The packing of weights of `count` taps, with these distances in memory, into panels, in parts.

A panel has the weights of some of a group's sums. The panels of a group have `panel_rows` rows, each but the
last one `height`. `lines` says whether the weights of a sum are a line of memory. See `compiled_shifts`.
"""

PatchRows = namedtuple(
    "PatchRows", "parts images count channels size rows taps positions columns patches bias begins"
)
"""Rows of images as rows of patches; each part has some channels of some images.

`rows` is a table as in `native_shifts`. A channel has `taps` rows of patches with `columns` elements,
`positions` for each of `count` images. `begins` says whether memory is set first: patches to zeros, images to
the bias.
"""
holds(PatchRows, images=Batch, rows=Table)

WindowImages = namedtuple(
    "WindowImages", "address count slices channels height width by_image by_slice by_channel by_row"
)
"""Images of contiguous rows: their address, sizes, and distances in elements; only volumes have slices."""

WindowPoints = namedtuple("WindowPoints", "address by_point by_line by_phase rows columns")
"""Transformed windows, contiguous along the last axis: their address, distances, rows and columns."""

FromWindows = namedtuple("FromWindows", "parts images top left points")
"""Windows of images, the first one this far above and left of them; each part has some channels."""
holds(FromWindows, images=WindowImages, points=WindowPoints)

ToWindows = namedtuple("ToWindows", "parts points bias images")
"""Images of windows, with a bias for each channel; each part has some channels."""
holds(ToWindows, points=WindowPoints, images=WindowImages)

RowSums = namedtuple("RowSums", "rows count width sums parts")
"""The sums of the rows of a matrix (count, width)."""


# --- a guard's findings

Finding = namedtuple("Finding", "instruction kind which low high")
"""A guard's finding after, or before, instruction number ``instruction - 1``; 0 for nothing.

`kind` is a FindingKind, and `which` the number in the guard's list of that kind. `low` and `high` are the
first and the last wrong byte, or the wrong number and its limit.
"""

FindingKind = namedtuple("FindingKind", "zone quantity table rows")
"""The kind of an error, by its place in this list."""


# --- programs in the threads of a host

HostWords = namedtuple("HostWords", "schedule host crew")
"""A host that runs a program: ``schedule(host, task, data)``, its first argument, and the run's crew.

`schedule` is the address of a C function that returns 0 if the host will run the task.
"""

WaitingRecord = namedtuple("WaitingRecord", "post wait semaphore tasks places")
"""Threads that wait for tasks: the addresses of ``sem_post``, of ``sem_wait`` and of a semaphore.

From the address `tasks` on, `places` integers hold the data of tasks, or 0.
"""

ForeignProgramRecord = namedtuple(
    "ForeignProgramRecord",
    "code code_length where memory places arena executor begin end slots count guard finding",
)
"""A program for a host, which brings `count` memories.

`code` has `code_length` integers; ``code[where[k]]`` is an offset into the host's memory ``memory[k]``, for k
below `places`. `executor` runs the instructions from `begin` to `end`. The arena has `arena` bytes, and
`slots` are arenas for later runs. `guard` is the place of a Guard in the code, or 0; its Finding is copied to
`finding`.
"""
holds(ForeignProgramRecord, finding=Finding)


# --- sequences of uneven lengths

Quantities = namedtuple("Quantities", "zero rows padded steps first later")
"""Integers that depend on the lengths of a batch; every table of quantities begins with these.

`padded` is T, and `steps` the largest length; `first` is 1 if there is a step, and `later` the number of
steps after it.
"""

ChunkQuantities = namedtuple(
    "ChunkQuantities",
    "low middle high start count later first later_place first_place",
)
"""The quantities of a chunk: its steps from `low` up to `high`, and its rows, `count` from `start` on.

Only step 0 can be before `middle`. `first` and `later` are the numbers of steps before `middle` and from it
on, `first_place` and `later_place` their places among all steps from last to first.
"""

Tables = namedtuple("Tables", "batch steps tables order ordered place starts marks reverse_marks")
"""The sizes N and T of a batch, and the places of its tables in the memory `tables`.

`order` and `ordered` are the sequences and their lengths from long to short, `place` each sequence's place in
that order, `starts` the first row of each step. With resets `marks` and `reverse_marks` are the rows' marks,
forward and backward in time: `NOTHING_BEFORE`, `NOTHING_AFTER`, their sum or 0. A place below 0 stands for a
table that nobody needs.
"""

# Whether a reset cuts a row off from the previous step of the time loop, and from the next step.
NOTHING_BEFORE, NOTHING_AFTER = 1, 2

ChunkRequest = namedtuple("ChunkRequest", "limit most is_turned quantities spans")
"""At most `most` chunks of about `limit` rows: the places of their quantities and of their steps.

`is_turned` says that steps run against the time order of rows.
"""

CutRequest = namedtuple("CutRequest", "parts low high table")
"""The cuts of the steps between two quantities into parts: the place of their table."""

Addition = namedtuple("Addition", "place quantity factor kept")
"""A quantity times a factor, which is added to one of a program's integers, or replaces it if `kept` is 0."""

ScheduleRecord = namedtuple(
    "ScheduleRecord",
    "lengths known spans turned_spans quantities code additions addition_count chunk_count cut_count",
)
"""The schedule of a batch; requests for chunks and then for cuts follow.

A place below 0 stands for a table that nobody needs.
"""
holds(ScheduleRecord, known=Tables)

MoveRowsRecord = namedtuple(
    "MoveRowsRecord",
    "parts reverse known low high first is_turned steps width target source initial",
)
"""The reordering of rows; see `programs.schedule.move_rows`."""
holds(MoveRowsRecord, known=Tables, target=Strided, source=Strided, initial=Strided)


# --- the guard

RedZone = namedtuple("RedZone", "address bytes first last")
"""Bytes that no instruction from number `first` to number `last` may write."""

Unwritten = namedtuple("Unwritten", "address bytes first")
"""Memory that no instruction before number `first` uses."""

QuantityLimit = namedtuple("QuantityLimit", "number most")
"""The largest value that a quantity was planned for."""

RowsLimit = namedtuple("RowsLimit", "number head at one rows")
"""The number of rows of a matrix of a time loop, which is instruction `number`.

`head` is the address of its LoopHead, `at` the place in a Span of the step's first row, and `one` says
whether a step has only this row.
"""

Guard = namedtuple(
    "Guard",
    "zones zone_count unwritten unwritten_count limits limit_count rows row_count scheduled quantities "
    "tables finding",
)
"""The checks of a program's instructions: lists, each with its length, and the finding.

`scheduled` is the number of the instruction that computes `quantities` and `tables`, or -1.
"""
holds(Guard, tables=Tables, finding=Finding)
