"""``verify``: is this model file what it should be? Structure, tokenizer, weights, and logits of two
backends.

With the folder that a GGUF file was made from, everything is compared with it. Alone, a model can be checked
for what it says of itself only: that it loads, that its tokenizer gives texts back, that both backends agree
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spola.core.errors import MissingExtraError, ModelError, SpolaError
from spola.evaluate.agreement import Agreement, require_numpy
from spola.evaluate.report import Report
from spola.evaluate.verify_tokens import compare_tokenizers, own_tokenizer
from spola.evaluate.verify_weights import compare_weights
from spola.evaluate.windows import Evaluator
from spola.load.model import Model, open_model
from spola.load.resolve import ModelPath
from spola.runtime.build import load_engine
from spola.runtime.config import Options
from spola.runtime.weights import converter
from spola.spec.catalog import CATALOG
from spola.spec.decoder import DecoderSpec
from spola.spec.to_gguf import as_gguf_spec, difference
from spola.text.chat import ChatTemplate
from spola.text.to_gguf import PROBE

__all__ = ["verify"]

_SAMPLE = 48  # tokens of the text that logits are compared on
_CLOSE = 1e-3  # of the largest logit, between two backends with the same arithmetic
_KL = 0.35  # nats of mean divergence between a quantized model and the full one

REFERENCE = "reference-quantized"

Say = Callable[[str], None]


def verify(
    where: ModelPath,
    against: ModelPath | None = None,
    *,
    threads: int = 1,
    backend: str = "native",
    say: Say = lambda line: None,
) -> Report:
    """All checks of the model at ``where``; ``against``: the folder it was made from, or it in full
    precision.

    Raises ModelError when the model cannot be opened at all; what fails later is in the report.
    """
    report = Report()
    with open_model(where) as model:
        report.add("opens", list(model.warnings), f"{model.spec.arch}, {len(model.spec.layers)} layers")
        say("tokenizer")
        template, problem = _template(model)
        alone = own_tokenizer(model.tokenizer, template)
        report.add("tokenizer", [problem] * bool(problem) + alone, "texts come back, special tokens are read")
        if against is None:
            report.skip("against the folder", "no --against, and no folder beside the file")
        else:
            _compare(model, against, report, threads, say)
        text = model.tokenizer.encode(PROBE)[:_SAMPLE]
        limit = model.spec.vocab
    ids = [token for token in text if token < limit]
    _backends(where, ids, report, Options(backend=backend, threads=threads, max_model_len=len(ids) + 1), say)
    if against is not None:
        _full(where, against, ids, report, threads, say)
    return report


def _template(model: Model) -> tuple[ChatTemplate | None, str]:
    if model.template is None:
        return None, ""
    tokenizer = model.tokenizer
    texts = ["" if t is None else tokenizer.token_text(t) for t in (tokenizer.bos_id, tokenizer.eos_id)]
    try:
        return ChatTemplate(model.template, *texts), ""
    except ModelError as error:
        return None, str(error)


def _compare(model: Model, against: ModelPath, report: Report, threads: int, say: Say) -> None:
    with open_model(against) as other:
        say("tokenizer against the other one")
        differ = compare_tokenizers(model.tokenizer, other.tokenizer)
        report.add("tokenizer against the other", differ, "equal ids, settings and special tokens")
        if against.kind != "hf" or model.path.suffix != ".gguf":
            report.skip("structure and weights", "are compared between a GGUF file and a folder")
            return
        arch = next((row.arch for row in CATALOG if row.model_type == other.spec.arch), "")
        if model.spec.arch != arch:
            report.add("structure", [f"architecture {model.spec.arch}, the folder's is {arch or 'none'}"], "")
            return
        wanted = _said(as_gguf_spec(other.spec, arch))
        found = difference(wanted, _said(model.spec))
        report.add("structure", [found] if found else [], "as the folder's configuration says")
        say("weights")
        wrong = compare_weights(model, other, arch, converter(threads))
        report.add(
            "weights", wrong, "rows of every tensor are the folder's, as far as their type can hold them"
        )


def _said(spec: DecoderSpec) -> DecoderSpec:
    return replace(spec, name="", vocab=0)  # a file may have padding rows


def _backends(where: ModelPath, ids: Sequence[int], report: Report, options: Options, say: Say) -> None:
    """Logits of the native backend and of the reference that has its arithmetic, on one text."""
    name = "native against the reference"
    say(name)
    try:
        np = require_numpy()
        rows = [_logits(where, ids, replace(options, backend=kind)) for kind in (options.backend, REFERENCE)]
    except MissingExtraError as error:
        report.skip(name, str(error))
        return
    except (SpolaError, MemoryError) as error:
        report.add(name, [str(error) or "there is no memory for the weights in f32"], "")
        return
    a, b = (np.frombuffer(b"".join(row), "<f4") for row in rows)
    worst = float(np.abs(a - b).max() / np.abs(b).max())
    told = "the logits are equal" if worst == 0 else f"logits within {worst:.1e} of the largest"
    report.add(name, [f"{told}; at most {_CLOSE:g} was expected"] if not worst <= _CLOSE else [], told)


def _full(
    where: ModelPath, against: ModelPath, ids: Sequence[int], report: Report, threads: int, say: Say
) -> None:
    """How far the distributions are from those of the other model, which is taken to be in full precision."""
    name = "distributions against the other"
    say(name)
    options = Options(threads=threads, max_model_len=len(ids) + 1)
    try:
        found = Agreement(_vocab(where))
        targets = list(ids[len(ids) // 2 + 1 :])
        found.add(_logits(where, ids, options), _logits(against, ids, options), targets)
    except MissingExtraError as error:
        report.skip(name, str(error))
        return
    except (SpolaError, ValueError) as error:
        report.add(name, [str(error)], "")
        return
    told = f"mean KL {found.mean_kl:.4f} nats, {found.top1:.0%} the same token, on {found.count} tokens"
    report.add(name, [f"{told}; at most {_KL:g} was expected"] if not found.mean_kl <= _KL else [], told)


def _vocab(where: ModelPath) -> int:
    with open_model(where) as model:
        return model.spec.vocab


def _logits(where: ModelPath, ids: Sequence[int], options: Options) -> list[bytes]:
    """f32 rows for the second half of ``ids``."""
    evaluator = Evaluator(load_engine(str(where.path), options).engine)
    try:
        return list(evaluator.logits(ids))
    finally:
        evaluator.close()
