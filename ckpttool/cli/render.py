"""What people read: plain lines when piped, a tree on a terminal, progress on stderr. Names are shown escaped."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import OutputError

if TYPE_CHECKING:
    from ..checkpoint import Layer, Notice, TensorSpec
    from ..extracting import ExtractedLayer
    from ..format_table import FormatInfo
    from ..inspecting import Inspection
    from ..migration.report import MigrationReport
    from ..reading import OnProgress, Progress
    from ..reporting import ConversionReport
    from ..statistics import Statistics
    from ..verification import Verification
    from .many import JsonSource

TREE_ROWS = 500  # a longer listing is written as plain lines as it comes, also on a terminal
STATISTICS_COLUMNS = ("min", "max", "mean", "std", "zeros", "nan", "inf")  # behind the four of a flat listing
# Who wrote a file that names no version, by the start of its format's name.
_WRITERS = {"keras": "an unnamed Keras", "tf": "an unnamed TensorFlow", "saved": "an unnamed TensorFlow"}
_SHOWN_DIFFERENCES = 20  # tensors that differ, named one a line: the report has them all
_SHOWN_SHAPES = 6  # tensors of one layer on its line


def one_line(text: str) -> str:
    """Text with line breaks, control and bidirectional characters escaped: names come from files."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def say(text: str) -> None:
    """One line for people, on stderr."""
    print(one_line(text), file=sys.stderr)


def out(text: str) -> None:
    """One line of the result, on stdout."""
    _write(one_line(text) + "\n")


def _write(text: str) -> None:
    with _to_stdout():
        sys.stdout.write(text)


def flush() -> None:
    """Write what is still buffered on stdout.

    Raises
    ------
    OutputError : it cannot be written: a full disk, an I/O error
    """
    with _to_stdout():
        sys.stdout.flush()


@contextmanager
def _to_stdout() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader went away; the command goes on, since its exit code is still an answer
        discard_output()
    except OSError as error:
        discard_output()
        raise OutputError(f"cannot be written: {error.strerror}", path="standard output") from error


def discard_output() -> None:
    """Send what is written to stdout from now on nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def replace_closed_streams() -> None:
    """What goes to a stream that was closed before we started (`>&-`) goes nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  stays open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def json_out(documents: Sequence[dict[str, Any]], form: str, *, many: bool = False) -> None:
    """Print results: one object, a list for several, or one object a line."""
    if form == "lines":
        for document in documents:
            _write(json.dumps(document) + "\n")
    else:
        _write(json.dumps(list(documents) if many else documents[0], indent=1) + "\n")


def json_document(document: JsonSource | dict[str, Any], *, one_line: bool, end: str) -> None:
    """Print one JSON object; one that comes in pieces is written as it comes."""
    if isinstance(document, dict):
        _write(json.dumps(document, indent=None if one_line else 1) + end)
        return
    for piece in document.json_chunks(one_line=one_line):
        _write(piece)
    _write(end)


def text_out(text: str) -> None:
    """Text of our own making, as it is, on stdout."""
    _write(text)


def notices(found: Iterable[Notice]) -> None:
    """Warnings, one a line, on stderr."""
    for notice in found:
        say(f"warning: {notice.message}")


def progress(quiet: bool) -> OnProgress | None:
    """A progress line on stderr, shown on a terminal and after one second."""
    if quiet or not sys.stderr.isatty():
        return None
    started = time.monotonic()
    shown = [0.0]

    def show(step: Progress) -> None:
        now = time.monotonic()
        finished = step.done_bytes >= step.total_bytes
        if finished and shown[0]:
            sys.stderr.write("\r\033[K")
        elif now - started > 1 and now - shown[0] > 0.1:
            shown[0] = now
            percent = 100 * step.done_bytes // max(1, step.total_bytes)
            sys.stderr.write(f"\r\033[K{percent:3d} %  {one_line(step.path)[:60]}")
        sys.stderr.flush()

    return show


def receipt(report: ConversionReport, *, quiet: bool) -> None:
    """The output's path on stdout; warnings, the receipt and notes on stderr."""
    if not quiet:
        notices(report.warnings)
        say((f"would write: {report.output}: " if report.dry_run else "") + report.sentence())
        for note in report.notes:
            say(note)
    if not report.dry_run:
        out(report.output)


def migration(done: MigrationReport, *, quiet: bool, verbose: bool) -> None:
    """A dry run's plan on stdout; else the output's path there, and on stderr the receipt, changes and the proof."""
    if done.dry_run:
        for line in _plan_lines(done):
            out(line)
        return
    if not quiet:
        notices(done.warnings)
        say(done.sentence())
        for note in done.notes:
            say(note)
        for tensor, how in done.transformed() if verbose else ():
            say(f"{tensor}: {how}")
    if done.verification is None:
        say("NOT VERIFIED: not asked for (--no-verify)")
    elif not quiet or not done.verification.verified:
        _proof(done.verification, say)
    out(done.output)


def _plan_lines(done: MigrationReport) -> Iterator[str]:
    yield f"would write: {done.output}: {done.sentence()}"
    if done.plan is not None:
        for path, layer in done.plan.model.walk():
            for spec in layer.before:
                yield f"{'  ' * len(path)}{spec.arguments.get('name', spec.class_name)}  {spec.class_name}"
            line = f"{'  ' * len(path)}{layer.name}  {layer.spec.class_name}"
            if layer.old_class != layer.spec.class_name:
                line += f"  (was {layer.old_class})"
            yield line
            for weight in layer.weights:
                yield f"{'  ' * len(path)}  {weight.variable}  {'/'.join(weight.source)}  {weight.describe()}"
    yield from done.notes


def _proof(found: Verification, show: Callable[[str], None]) -> None:
    show(found.sentence())
    for name in found.differing[:_SHOWN_DIFFERENCES]:
        show(f"differs: {name}")
    for reason in found.not_verified:
        show(f"not verified: {reason}")


def verification(found: Verification) -> None:
    """The answer on stdout."""
    _proof(found, out)


def inspection(found: Inspection, *, verbose: bool = False) -> None:
    """A checkpoint as a person wants to read it."""
    for line in _heading(found, verbose):
        out(line)
    rows = list(itertools.islice(found.layers(), TREE_ROWS + 1))
    if sys.stdout.isatty() and len(rows) <= TREE_ROWS and not found.statistics:
        _tree(rows)
    else:
        for path, layer in found.layers():
            out("  " * len(path) + _layer_line(path, layer))
            if found.statistics:
                for spec in layer.tensors:
                    name, measured = "/".join(spec.path[len(path) :]), found.statistics.get(spec.locator)
                    out("  " * (len(path) + 1) + _measured(name, spec, measured))
    if found.pattern is not None and not rows:
        out(f"  no layer fits '{found.pattern}'")
    for line in _footer(found):
        out(line)


def flat(found: Inspection, *, label: bool, quiet: bool) -> None:
    """One line a tensor, tab-separated: path, shape, dtype, where it is stored; with statistics those too."""
    if label:
        out(next(_heading(found, False)))
    if not quiet:
        notices(found.warnings)
    listed = itertools.chain.from_iterable(layer.tensors for _, layer in found.layers())
    others = found.bookkeeping_tensors() if found.with_optimizer else ()
    for spec in itertools.chain(listed, found.optimizer_tensors(), others):
        fields = [spec.name, _shape(spec.shape), spec.dtype, spec.locator]
        if found.statistics:
            measured = found.statistics.get(spec.locator)
            values = measured.to_json().values() if measured is not None else [None] * len(STATISTICS_COLUMNS)
            fields += ["" if value is None else f"{value:.6g}" for value in values]
        _write("\t".join(map(one_line, fields)) + "\n")


def _heading(found: Inspection, verbose: bool) -> Iterator[str]:
    whole = found.whole
    versions = (("Keras", whole.written_by.keras), ("TensorFlow", whole.written_by.tensorflow))
    writer = ", ".join(f"{name} {version}" for name, version in versions if version)
    backend = f" on {whole.written_by.backend}" if whole.written_by.backend and not whole.written_by.tensorflow else ""
    writer = writer or _WRITERS.get(whole.format.partition("-")[0], "a library that it does not name")
    compiled = ", compiled" if whole.training_config is not None else ""
    what = {"model": "full model", "weights": "weights only"}.get(whole.kind, whole.kind)
    yield f"{found.path}: {what}{compiled}, {whole.format}, written by {writer}{backend}"
    wrapper = found.wrapper
    if wrapper is not None:
        sure = "wrapper" if wrapper.certain else "looks like a wrapper (not proven)"
        replicas = f", {wrapper.replicas} replicas" if wrapper.replicas else ""
        depth = f", {wrapper.depth} deep" if wrapper.depth > 1 else ""
        template = f", template '{'/'.join(wrapper.template)}'" if wrapper.template else ""
        yield f"{sure}: {wrapper.kind}{replicas}{depth}{template}"
        for reason in wrapper.reasons:
            yield f"  because {reason}"
    if verbose and whole.config is not None:
        yield f"configuration: {len(whole.config):,} characters of JSON"


def _footer(found: Inspection) -> Iterator[str]:
    from ..reporting import megabytes

    for signature in found.signatures():
        sides = (
            ", ".join(_tensor_text(tensor) for tensor in signature[side]) or "nothing" for side in ("inputs", "outputs")
        )
        yield f"signature {signature['name']}: {' -> '.join(sides)}"
    totals = found.totals()
    yield (
        f"{_count(totals['layers'], 'layer')}, {_count(totals['tensors'], 'tensor')}, "
        f"{_count(totals['parameters'], 'parameter')}, {megabytes(totals['bytes'])}"
    )
    optimizer = found.optimizer()
    if optimizer is not None:
        yield f"optimizer: {optimizer['class_name'] or 'unnamed'}, {_count(optimizer['tensors'], 'tensor')}"
    for spec in found.optimizer_tensors():
        yield "  " + _measured("/".join(spec.path[1:] or spec.path), spec, found.statistics.get(spec.locator))
    assets = found.assets_json()
    if assets:
        shown = ", ".join(f"{each['path']} ({megabytes(each['bytes'])})" for each in assets[:3])
        yield f"asset files: {shown}{f' and {len(assets) - 3} more' if len(assets) > 3 else ''}"
    if found.embeddings:
        yield f"embeddings: {', '.join(found.embeddings)}"
    for notice in found.warnings:
        yield f"warning: {notice.message}"
    if found.next_command:
        yield f"next: {found.next_command}"
    if found.unwrap_command:
        yield f"for tf_keras and the old Keras: {found.unwrap_command}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _tensor_text(tensor: dict[str, Any]) -> str:
    """An input or output of a signature: `ids int32 ?×4`."""
    shape = tensor["shape"]
    if shape is None:
        return f"{tensor['name']} {tensor['dtype']}"
    sizes = "×".join("?" if size is None else str(size) for size in shape) or "scalar"
    return f"{tensor['name']} {tensor['dtype']} {sizes}"


def _layer_line(path: tuple[str, ...], layer: Layer) -> str:
    text = layer.name
    if layer.class_name is not None:
        text += f"  {layer.class_name}"
    if layer.trainable is False:
        text += "  frozen"
    if layer.calls > 1:
        text += f"  called {layer.calls} times"
    if layer.tensors:
        names = [spec.path[-1] for spec in layer.tensors]
        if len(set(names)) < len(names):  # the two directions of a Bidirectional, the cells of a stack
            names = ["/".join(spec.path[len(path) :]) for spec in layer.tensors]
        listed = list(zip(names, layer.tensors, strict=True))[:_SHOWN_SHAPES]
        shapes = [f"{name} {_shape(spec.shape)}" for name, spec in listed]
        more = f" and {len(layer.tensors) - _SHOWN_SHAPES} more" if len(layer.tensors) > _SHOWN_SHAPES else ""
        dtypes = ", ".join(dict.fromkeys(spec.dtype for spec in layer.tensors))
        text += f"  {', '.join(shapes)}{more}  {dtypes}"
    return text


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _tree(rows: Sequence[tuple[tuple[str, ...], Layer]]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    root = Tree("", hide_root=True)
    nodes: dict[tuple[str, ...], Tree] = {(): root}
    for path, layer in rows:
        parent = next(nodes[path[:end]] for end in range(len(path) - 1, -1, -1) if path[:end] in nodes)
        name, _, rest = one_line(_layer_line(path, layer)).partition("  ")
        label = Text(name, style="bold")
        label.append(f"  {rest}" if rest else "", style="dim" if not layer.tensors else "default")
        nodes[path] = parent.add(label)
    Console().print(root)


def extracted(layer: ExtractedLayer, *, quiet: bool) -> None:
    """What was written where, or the layer's tensors with their statistics."""
    if not quiet:
        notices(layer.warnings)
        for note in layer.notes:
            say(note)
    if layer.outputs:
        if not quiet:
            say(layer.sentence())
        for output in layer.outputs:
            out(output)
        return
    out(f"{layer.name}" + (f"  {layer.class_name}" if layer.class_name else ""))
    for spec in layer.tensors:
        out("  " + _measured("/".join(spec.path[len(layer.path) :]), spec, layer.statistics.get(spec.name)))


def _measured(name: str, spec: TensorSpec, found: Statistics | None) -> str:
    """A tensor with its statistics, where there are any."""
    line = f"{name}  {_shape(spec.shape)}  {spec.dtype}"
    if found is not None and found.minimum is not None:
        line += f"  min {found.minimum:.6g}  max {found.maximum:.6g}  mean {found.mean:.6g}  std {found.std:.6g}"
        line += f"  zeros {found.zeros}"
    if found is not None and (found.nan or found.inf):
        line += f"  NaN {found.nan}  Inf {found.inf}"
    return line


def format_table(rows: Sequence[FormatInfo]) -> None:
    """One format a line: name, read and write, then its signs and what is installed for it."""
    width = max(len(each.name) for each in rows)
    for each in rows:
        ways = "read" if each.reads else ""
        ways += f", write {' '.join(each.writes)}" if each.writes else ""
        out(f"{each.name:{width}}  {ways}")
        out(f"{'':{width}}    known by {each.signs}")
        if each.extras:
            shown = ", ".join(f"{package} {version or 'not installed'}" for package, version in each.extras)
            out(f"{'':{width}}    {shown}")
