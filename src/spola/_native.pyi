from collections.abc import Sequence
from typing import Any

def compiled_isas() -> list[str]: ...
def usable_isas() -> list[str]: ...
def chosen_isa(isa: str) -> str: ...
def measure_read_bandwidth(bytes: int, threads: int, passes: int, huge_pages: bool) -> list[float]: ...
def self_check(isa: str) -> str: ...
def measure_peak(isa: str, format: str, threads: int, passes: int) -> list[float]: ...
def measure_mix(isa: str, type: int, precise: bool, passes: int) -> list[float]: ...
def measure_linear(
    isa: str, type: int, precise: bool, rows: int, cols: int, m: int, passes: int
) -> tuple[str, int, list[float]]: ...
def trim_heap() -> None: ...
def packed_bytes(type: int, rows: int, cols: int, precise: bool) -> int: ...
def convert(source: int, target: int, rows: int, cols: int, data: Any, threads: int) -> bytearray: ...

class Decoder:
    def __init__(
        self,
        *,
        vocab: int,
        hidden: int,
        max_step_tokens: int,
        max_seqs: int,
        max_model_len: int,
        threads: int,
        precise: bool,
        huge_pages: bool,
        weight_limit: int,
        isa: str,
    ) -> None: ...
    def add_matrix(self, name: str, type: int, rows: int, cols: int, data: Any) -> int: ...
    def add_vector(self, name: str, type: int, n: int, data: Any, offset: float) -> int: ...
    def add_rope(self, frequencies: Sequence[float], factor: float, interleaved: bool) -> int: ...
    def add_kv_group(
        self,
        *,
        layers: int,
        heads: int,
        k_dim: int,
        v_dim: int,
        window: int,
        k_type: int,
        v_type: int,
        latent: bool,
        blocks: int,
    ) -> int: ...
    def embed(self, matrix: int, scale: float, positions: int, offset: int) -> None: ...
    def residual(self, input: int, norm: tuple[int, int, int, float], multiplier: float) -> None: ...
    def prepare(
        self,
        input: int,
        width: int,
        norm: tuple[int, int, int, float],
        consumers: Sequence[int],
        rows: int = 0,
    ) -> None: ...
    def prepare_part(
        self,
        *,
        input: int,
        stride: int,
        width: int,
        norm: tuple[int, int, int, float],
        consumers: Sequence[int],
        heads: int,
        step: int,
    ) -> None: ...
    def heads(self, *, count: int, matrix: int, output: int, width: int, step: int) -> None: ...
    def latent(
        self,
        *,
        group: int,
        layer: int,
        heads: int,
        scale: float,
        rope: int,
        norm: tuple[int, int, int, float],
        q: int,
        q_dim: int,
        q_stride: int,
        kv_column: int,
        kv_stride: int,
    ) -> None: ...
    def route(
        self,
        experts: int,
        used: int,
        width: int,
        normalise: bool,
        scale: float,
        sigmoid: bool,
        bias: int,
        groups: int,
        groups_used: int,
    ) -> None: ...
    def experts(
        self,
        *,
        count: int,
        gate: int,
        up: int,
        gate_bias: int,
        up_bias: int,
        output: int,
        width: int,
        epilogue: int,
        clamp: float,
        up_offset: float,
    ) -> None: ...
    def combine(self, width: int, shared: bool, shared_gate: bool, router_width: int) -> None: ...
    def linear(
        self,
        parts: Sequence[tuple[int, int, int, int]],
        output: int,
        width: int,
        epilogue: int,
        multiplier: float,
        clamp: float = 0.0,
        up_offset: float = 0.0,
        max_rank: int = 0,
    ) -> None: ...
    def adapt(self, sites: Sequence[int], max_rank: int) -> None: ...
    def add_site(self, rows: int, cols: int) -> int: ...
    def add_adapter(self) -> int: ...
    def add_adapter_part(self, adapter: int, site: int, rank: int, scale: float, a: Any, b: Any) -> None: ...
    def drop_adapter(self, adapter: int) -> None: ...
    def attention(
        self,
        *,
        group: int,
        layer: int,
        heads: int,
        scale: float,
        softcap: float,
        rope: int,
        q_norm: tuple[int, int, int, float],
        k_norm: tuple[int, int, int, float],
        norm_whole: bool,
        sinks: int,
    ) -> None: ...
    def head(
        self, norm: tuple[int, int, int, float], matrix: int, bias: int, scale: float, softcap: float
    ) -> None: ...
    def finish(self) -> None: ...
    def execute(
        self, fresh: list[Any], gone: list[int], copies: list[Any], zero: list[Any], slices: list[Any]
    ) -> list[Any]: ...
    def memory(self) -> dict[str, int]: ...
    def counters(self) -> list[dict[str, int]]: ...
    def time_ops(self, on: bool) -> None: ...
    def op_times(self) -> list[tuple[str, tuple[int, ...], float]]: ...
    def poison(self, group: int, block: int) -> None: ...
    def hold(self, handle: int, weights: Any) -> None: ...
    def adopt(self, handle: int, source: Decoder) -> None: ...
    def drop(self, handle: int) -> None: ...
    @property
    def isa(self) -> str: ...
