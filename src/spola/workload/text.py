"""Prompts for a mix, for servers whose vocabulary is not known: common English words, one token each.

Such a word with its space is one token in every common vocabulary, so that the lengths come close; what a
server counted is in its usage.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from spola.workload.mixes import Item

__all__ = ["WORDS", "materialize"]

_COMMON = """
    the of and to in is you that it he was for on are as with his they be at one have this from or had
    by not word but what some we can out other were all there when up use your how said an each she
    which do their time if will way about many then them write would like so these her long make thing
    see him two has look more day could go come did number sound no most people my over know water than
    call first who may down side been now find any new work part take get place made live where after
    back little only round man year came show every good me give our under name very through just form
    sentence great think say help low line differ turn cause much mean before move right boy old too
    same tell does set three want air well also play small end put home read hand port large spell add
    even land here must big high such follow act why ask men change went light kind off need house
    picture try us again animal point mother world near build self earth father head stand own page
    should country found answer school grow study still learn plant cover food sun four between state
    keep eye never last let thought city tree cross farm hard start might story saw far sea draw left
    late run while press close night real life few north open seem together next white children begin
    got walk
"""
WORDS = tuple(_COMMON.split())


def materialize(
    item: Item, index: int, *, nonce: str = "", seed: int = 0, vocab: int | None = None
) -> str | list[int] | list[Mapping[str, Any]]:
    """The prompt of ``item``, the ``index``-th of its mix: text, or the messages of a file.

    ``nonce`` differs from run to run, so that no cache of an earlier run knows the prompts; items of a group
    still share their prefix. With ``vocab`` a prompt that no file gives is token ids below it.
    """
    if item.messages is not None:
        return list(item.messages)
    if item.text is not None:
        return item.text
    parts = (
        (f"shared {seed} {nonce} {item.group}", item.shared),
        (f"own {seed} {nonce} {index}", item.prompt - item.shared),
    )
    if vocab is not None:
        return [token for name, n in parts for token in random.Random(name).choices(range(vocab), k=n)]
    return " ".join(word for name, n in parts for word in random.Random(name).choices(WORDS, k=n))
