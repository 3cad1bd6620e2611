"""Records: what compiled code reads from 64-bit integers, each declared once, for the writer and the reader.

Python writes ``flat(Record(...))``. Compiled code reads ``data[FIELDS.name]``, where ``FIELDS`` is
``positions(Record)``; a record that begins elsewhere is read as ``data[begin + FIELDS.name]``. A field whose
type is a record stands as that record's fields. Addresses are numbers here, or what a program replaces by
one.

The record of an object that has a class of its own ends in Record: compiled code reads an
`instructions.Work` from a `WorkRecord`.

Nothing here needs llvmlite.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

_Record = TypeVar("_Record", bound=tuple)


def flat(record: tuple) -> list[Any]:
    """The integers of a record, one behind the other; for one without records in it ``[*record]`` does."""
    values = list(record)
    for place in _records_in(type(record)):
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


def _numbered(record: type[_Record], numbers: Iterator[int]) -> _Record:
    kinds = record.__annotations__.values()
    places: list[Any] = [_numbered(kind, numbers) if _is_record(kind) else next(numbers) for kind in kinds]
    return record(*places)


@functools.cache
def _records_in(record: type[tuple]) -> list[int]:
    """The places of the fields that are records, the last one first."""
    kinds = record.__annotations__.values()
    return [place for place, kind in enumerate(kinds) if _is_record(kind)][::-1]


def _is_record(kind: Any) -> bool:
    return hasattr(kind, "_fields")


# --- arrays


class Strided(NamedTuple):
    """An array of up to three axes: its first element, and the strides of each axis, in elements."""

    address: Any
    outer: Any
    row: Any
    column: Any


class Rows(NamedTuple):
    """A matrix whose columns follow one another; `line` is the length of a whole row."""

    address: Any
    rows: Any
    columns: Any
    line: Any


class Panels(NamedTuple):
    """A time loop's weight in panels: `count` matrices of so many rows and columns, one behind the other.

    It stands between matrices that are Rows, and has as many integers.
    """

    address: Any
    rows: Any
    columns: Any
    count: Any


class RowsProduct(NamedTuple):
    """What a time loop's product is of: rows of the source times the weight, into rows of the target."""

    source: Rows
    weight: Panels
    target: Rows


class Ahead(NamedTuple):
    """Memory that a product asks for ahead: the next byte of a range, its end, the bytes from pass to pass.

    `next` is the address of the next range, and `left` says how many are left. `products` says by how many
    products of equal size they are to be asked for, and is 0 from the first of these on. The ranges follow:
    the first byte and the number of bytes.
    """

    place: Any
    end: Any
    step: Any
    next: Any
    left: Any
    products: Any


class Factor(NamedTuple):
    """A matrix of a product: its first element, and the distances of its rows and of its columns."""

    address: Any
    row: Any
    column: Any


# --- time loops and array loops: in front of the arrays


class LoopHead(NamedTuple):
    """A time loop: its steps, the bounds of its parts, and what its products need.

    `spans` is the address of four integers for each step (`formulas.formula.Span`), `bounds` that of the
    first rows of the parts. For `tiles` to `lanes` see `products.matrix.Functions`.

    Where the parts have columns instead of rows, `parts` is how many they are, and a call of the loop does
    one of the `stages` of one step: `stage` of `step`.
    """

    steps: Any
    spans: Any
    bounds: Any
    tiles: Any
    by_panels: Any
    height: Any
    lanes: Any
    parts: Any
    stages: Any
    step: Any
    stage: Any


class ArraysHead(NamedTuple):
    """A loop over arrays: the addresses of its parts' bounds and of the formula's numbers."""

    bounds: Any
    numbers: Any


# --- instructions of a program


class ProgramHead(NamedTuple):
    """What stands in front of all instructions: a team's entry point, native.share_parts.

    `guard` is the address of a Guard, or 0. `steps` is the call's T where calls with different ones share the
    program, else 0.
    """

    team: Any
    share: Any
    guard: Any
    steps: Any


class InstructionHead(NamedTuple):
    """What stands in front of an instruction's record: how many integers it has in all, and a Kind."""

    length: Any
    kind: Any


class Kind(NamedTuple):
    """What an instruction is, by the place in this list."""

    work: Any
    steps: Any


class ArithmeticKind(NamedTuple):
    """What an Arithmetic computes, by the place in this list."""

    zero: Any
    copy: Any
    add: Any
    multiply: Any
    root: Any
    column_sums: Any
    column_sums_of_products: Any


class MoveKind(NamedTuple):
    """What a MoveRows moves, by the place in this list: rows over time first, then those of states."""

    pack: Any
    unpack: Any
    turn: Any
    previous: Any
    sort: Any
    unsort: Any
    last: Any


class SharedWork(NamedTuple):
    """A compiled ``function(data, part)`` that is run in parts by the threads of a team.

    The last two are for the team: the addresses of OpenMP's ``omp_get_thread_num`` and
    ``omp_get_num_threads``, or that of a HostWords and of `native_foreign.task`.
    """

    function: Any
    data: Any
    parts: Any
    team_first: Any
    team_second: Any


class SystemCalls(NamedTuple):
    """Addresses of functions of the operating system, 0 for each that it lacks; see `compiled.system_calls`.

    They are ``malloc(size)``, ``free(address)``, ``sched_yield()`` and ``madvise(address, size, advice)``.
    `page` is the number of bytes of a page of memory.
    """

    malloc: Any
    free: Any
    give_way: Any
    advise: Any
    page: Any


class WorkRecord(NamedTuple):
    """An instruction that is a function of its own; `address` is where `shared` stands."""

    address: Any
    shared: SharedWork


class Packing(NamedTuple):
    """Matrices (k, n) packed into panels, some of them in each part.

    For the first one see `products.matrix.Functions`. From one of the `count` matrices to the next there are
    `apart` elements.
    """

    pack: Any
    parts: Any
    k: Any
    n: Any
    source: Factor
    target: Any
    count: Any
    apart: Any


class ProductRecord(NamedTuple):
    """A product of our own; see `products.matrix.ProductPlan`."""

    tiles: Any
    pack: Any
    by_panels: Any
    m: Any
    n: Any
    k: Any
    add: Any
    by_rows: Any
    parts: Any
    c: Any
    c_line: Any
    a: Factor
    b: Factor
    memory: Any
    bytes: Any
    columns: Any


class Products(NamedTuple):
    """Products of a stack of matrices: how many, the distances from one to the next, and the first one."""

    multiply: Any
    count: Any
    parts: Any
    c: Any
    a: Any
    b: Any
    first: ProductRecord


class ArithmeticRecord(NamedTuple):
    """Arithmetic on arrays of one shape; see `programs.program.Arithmetic`."""

    kind: Any
    parts: Any
    planes: Any
    rows: Any
    columns: Any
    target: Strided
    first: Strided
    second: Strided


# --- images


class Batch(NamedTuple):
    """Images: the first element, and the distances from one image and from one channel to the next."""

    address: Any
    image: Any
    channel: Any


class Table(NamedTuple):
    """Rows of integers: where they begin, and how many there are."""

    address: Any
    rows: Any


class Shared(NamedTuple):
    """Items in parts: the address of each part's first item, and memory, so many bytes for each part."""

    bounds: Any
    memory: Any
    bytes: Any


class ShiftedSums(NamedTuple):
    """Weighted sums of shifted images; see `images.compiled_shifts`.

    An item is a stretch of a group of an image; where loops are over positions, a stretch is a whole image.
    A part's memory begins with the grid, each channel `room` elements long; behind it are the sums, in rows
    of `line`. The packed weights of a group have `panel_rows` rows.
    """

    shared: Shared
    images: Batch
    rows: Table
    groups: Any
    channels_in: Any
    sums: Any
    panel_rows: Any
    parts: Table
    taps: Any
    wanted: Any
    weights: Any
    bias: Any
    results: Batch
    begin: Any
    end: Any
    stretch: Any
    stretches: Any
    room: Any
    grid: Any
    line: Any


class ShiftedProducts(NamedTuple):
    """Inner products of images with shifted images; items are ordered by group, and parts have own results.

    `count` is the number of images; for the others see ShiftedSums.
    """

    shared: Shared
    a: Batch
    a_rows: Table
    images: Batch
    rows: Table
    count: Any
    groups: Any
    channels_in: Any
    sums: Any
    taps: Table
    length: Any
    stretch: Any
    stretches: Any
    room: Any
    grid: Any
    results: Any


class TapPacking(NamedTuple):
    """Weights with these distances in memory, of `count` taps, into panels, some of them in each part.

    A panel has the weights of some of a group's sums; a group's panels have `panel_rows` rows. See
    `compiled_shifts`.
    """

    parts: Any
    weights: Any
    by_group: Any
    by_sum: Any
    by_channel_in: Any
    by_tap: Any
    groups: Any
    sums: Any
    panel_rows: Any
    channels_in: Any
    taps: Any
    count: Any
    target: Any


class WindowImages(NamedTuple):
    """Images whose rows' elements follow one another: their address, sizes, and distances in elements."""

    address: Any
    count: Any
    channels: Any
    height: Any
    width: Any
    by_image: Any
    by_channel: Any
    by_row: Any


class WindowPoints(NamedTuple):
    """Transformed windows, contiguous along the last axis: address, distances, rows and columns of them."""

    address: Any
    by_point: Any
    by_line: Any
    rows: Any
    columns: Any


class FromWindows(NamedTuple):
    """Windows of images, the first one so far above and left of them; each part has some of the channels."""

    parts: Any
    images: WindowImages
    top: Any
    left: Any
    points: WindowPoints


class ToWindows(NamedTuple):
    """Images of windows, with a bias for each channel; each part has some of the channels."""

    parts: Any
    points: WindowPoints
    bias: Any
    images: WindowImages


class RowSums(NamedTuple):
    """The sums of the rows of a matrix (count, width)."""

    rows: Any
    count: Any
    width: Any
    sums: Any
    parts: Any


# --- what a guard finds


class Finding(NamedTuple):
    """What a guard found: after, or before, instruction number ``instruction - 1``; 0 for nothing.

    `kind` is a FindingKind, `which` the number in the guard's list of that kind, `low` and `high` are the
    first and the last wrong byte, or the wrong number and what it should be at most.
    """

    instruction: Any
    kind: Any
    which: Any
    low: Any
    high: Any


class FindingKind(NamedTuple):
    """What is wrong, by the place in this list."""

    zone: Any
    quantity: Any
    table: Any
    rows: Any


# --- programs in the threads of a host


class HostWords(NamedTuple):
    """A host that runs a program: ``schedule(host, task, data)``, what that takes first, and the run's crew.

    `schedule` is the address of a C function that returns 0 where the host will run the task some time.
    """

    schedule: Any
    host: Any
    crew: Any


class WaitingRecord(NamedTuple):
    """Threads that wait for tasks: the addresses of ``sem_post``, of ``sem_wait`` and of a semaphore.

    There are `places` for the data of tasks, from the address `tasks` on; 0 stands where there is none.
    """

    post: Any
    wait: Any
    semaphore: Any
    tasks: Any
    places: Any


class ForeignProgramRecord(NamedTuple):
    """A program for a host.

    `code` has `code_length` integers. ``code[where[k]]`` is an offset into memory number ``memory[k]`` of the
    host. `arena` is in bytes; `executor` runs the instructions from
    `begin` to `end`; `slots` are arenas that wait; `count` is how many memories the host brings. `guard` is
    where a Guard stands in the code, or 0; its Finding is copied to `finding`.
    """

    code: Any
    code_length: Any
    where: Any
    memory: Any
    places: Any
    arena: Any
    executor: Any
    begin: Any
    end: Any
    slots: Any
    count: Any
    guard: Any
    finding: Finding


# --- sequences of uneven lengths


class Quantities(NamedTuple):
    """Integers that the lengths of a batch decide; every table of them begins so.

    `padded` is T, and `steps` the largest length; `first` is 1 where there is a step, and `later` how many
    come after it.
    """

    zero: Any
    rows: Any
    padded: Any
    steps: Any
    first: Any
    later: Any


class ChunkQuantities(NamedTuple):
    """Those of a chunk: its steps from `low` up to `high`, and its rows, `count` from `start` on.

    Steps before `middle` are the very first one. Of these and of the later ones it has the number, and the
    place among all steps from last to first.
    """

    low: Any
    middle: Any
    high: Any
    start: Any
    count: Any
    later: Any
    first: Any
    later_place: Any
    first_place: Any


class Tables(NamedTuple):
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
    marks, turned_marks
        Of each row where sequences have resets, for time forwards and backwards: `NOTHING_BEFORE` and
        `NOTHING_AFTER`, or their sum. A place below 0 stands for a table that nobody needs.
    """

    batch: Any
    steps: Any
    resets: Any
    tables: Any
    order: Any
    ordered: Any
    place: Any
    starts: Any
    marks: Any
    turned_marks: Any


# Of a row, whether a reset cuts it off from the step before it in the time loop, and from the step after it.
NOTHING_BEFORE, NOTHING_AFTER = 1, 2


class ChunkRequest(NamedTuple):
    """Chunks of about `limit` rows, `most` of them: where their quantities and their table of steps begin.

    `is_turned` says that rows have the order of time, and steps run against it.
    """

    limit: Any
    most: Any
    is_turned: Any
    quantities: Any
    spans: Any


class CutRequest(NamedTuple):
    """The cuts between so many parts, of the steps between two quantities: where their table begins."""

    parts: Any
    low: Any
    high: Any
    table: Any


class Addition(NamedTuple):
    """A quantity times a factor, added to one of a program's integers; or in its place, where `kept` is 0."""

    place: Any
    quantity: Any
    factor: Any
    kept: Any


class ScheduleRecord(NamedTuple):
    """What finds the tables; its requests follow, those for chunks and then those for cuts.

    A place below 0 stands for a table that nobody needs.
    """

    lengths: Any
    known: Tables
    spans: Any
    turned_spans: Any
    quantities: Any
    code: Any
    additions: Any
    addition_count: Any
    chunk_count: Any
    cut_count: Any


class MoveRowsRecord(NamedTuple):
    """Rows brought into another order; see `programs.schedule.MoveRows`."""

    kind: Any
    parts: Any
    reverse: Any
    known: Tables
    low: Any
    high: Any
    first: Any
    is_turned: Any
    steps: Any
    width: Any
    target: Strided
    source: Strided
    initial: Strided


# --- the guard


class RedZone(NamedTuple):
    """Bytes that nobody may write, from instruction number `first` to number `last`."""

    address: Any
    bytes: Any
    first: Any
    last: Any


class Unwritten(NamedTuple):
    """Memory that instruction number `first` is the first one to use."""

    address: Any
    bytes: Any
    first: Any


class QuantityLimit(NamedTuple):
    """The largest value that a quantity was planned for."""

    number: Any
    most: Any


class RowsLimit(NamedTuple):
    """How many rows a matrix has that a time loop, instruction `number`, reads or writes.

    `head` is the address of its LoopHead, `at` says which integer of a Span is the step's first row, `one`
    whether it is the only one.
    """

    number: Any
    head: Any
    at: Any
    one: Any
    rows: Any


class Guard(NamedTuple):
    """What a program's instructions must leave alone: lists, each with its length, and what was found.

    `scheduled` is the number of the instruction that finds the `quantities` and `tables`, or -1.
    """

    zones: Any
    zone_count: Any
    unwritten: Any
    unwritten_count: Any
    limits: Any
    limit_count: Any
    rows: Any
    row_count: Any
    scheduled: Any
    quantities: Any
    tables: Tables
    finding: Finding
