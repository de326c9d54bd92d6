"""Steps keep to what a backend can do: static shapes, fixed chunks, one kind at a time, a bounded context."""

from spola.core.runner import Capabilities
from support.engine_rig import Rig, request, shapes, small_static


def test_static_shapes_alternate_and_keep_their_chunk():
    rig = Rig(capabilities=small_static(), rows=16)
    rig.add(request(1, 3, 12, ignore_eos=True), request(2, 20, 4, ignore_eos=True))
    seen = [shapes(rig.step()) for _ in range(7)]
    assert seen[0] == [(1, 0, 3)]
    assert [(2, 0, 8)] in seen
    assert [(2, 8, 8)] in seen
    assert [(2, 16, 4)] in seen
    assert all(len(s) == 1 for s in seen[:4])
    rig.finish()


def test_a_fixed_chunk_that_decodes_would_crowd_out_alternates_too():
    caps = Capabilities(device="null", block_size=4, prefill_chunk=16)
    rig = Rig(capabilities=caps, rows=16, seqs=4)
    rig.add(request(1, 3, 40, ignore_eos=True), request(2, 40, 1))
    rig.finish()
    done = {id: result.finals[0].summary.finished_s for id, result in rig.results.items()}
    assert done[2] < done[1]


def test_the_context_bound_holds_back_admission():
    rig = Rig(capabilities=small_static(max_total_context=40), rows=16)
    rig.add(request(1, 20, 3, ignore_eos=True), request(2, 20, 3, ignore_eos=True))
    rig.finish()
    order = [s.id for step in rig.steps for s in step.slices]
    assert order == sorted(order)


def test_no_more_run_than_the_largest_bucket_takes():
    rig = Rig(capabilities=Capabilities(device="null", block_size=4, batch_buckets=(1, 3)))
    rig.add(*(request(i, 3, 5, ignore_eos=True) for i in range(7)))
    rig.finish()
    assert max(len(step.slices) for step in rig.steps) == 3


def test_a_long_decode_and_a_prompt_share_the_context_bound():
    caps = Capabilities(device="null", block_size=4, max_total_context=40)
    rig = Rig(capabilities=caps)
    rig.add(request(1, 16, 22, ignore_eos=True), request(2, 16, 22, ignore_eos=True))
    results = rig.finish()
    assert all(len(r.ids) == 22 for r in results.values())
    both = [step for step in rig.steps if len(step.slices) == 2]
    assert both
    assert all(sum(s.start + s.n for s in step.slices) <= 40 for step in rig.steps)


def test_a_one_token_prompt_does_not_join_a_chunk_where_kinds_alternate():
    caps = Capabilities(device="null", block_size=4, mixed_batch=False)
    rig = Rig(capabilities=caps, rows=8)
    rig.add(request(1, 12, 2, ignore_eos=True), request(2, 1, 2, ignore_eos=True))
    rig.finish()
    for step in rig.steps:
        assert len({s.n == 1 for s in step.slices}) == 1
