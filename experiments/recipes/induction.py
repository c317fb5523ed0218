"""A start from which a tiny model learns to copy and to look up in minutes, whatever the seed.

An induction circuit (Olsson et al. 2022, "In-context Learning and Induction Heads") takes two
layers: a head that carries the previous token forward, and one that looks for a position whose
previous token is the current one, and copies from there. Looking a citation up takes the same two
steps: carry the words and the id that stand before a word to it, then look for the same words and
copy the id. From a random start gradient descent finds both after plateaus whose length is a
matter of luck. Here the attention of the first two layers is drawn so that these heads are there
in outline, which training then sharpens; everything stays trainable.
"""

from typing import Any

EMBEDDING_STD = 0.1
BIAS = 0.8  # norm of the part that all embeddings share
# Rotary frequencies, radians per token: above FAST they tell neighbours apart, below SLOW they
# hardly change over a problem.
FAST, SLOW = 0.15, 0.04
SHARPNESS = 1.6  # of both layers' query and key norms
CARRY, COPY = 0.5, 0.5  # gains of what the two layers write
OWN = 2.5  # weight of a word itself beside the word that was carried to it
BEFORE, ATTRIBUTE, ID = 1, 2, 5  # in "<snippet id=|S3|>|The| mayor| of| Alder|", as Alder sees it
CARRIED = (BEFORE, ATTRIBUTE, ID)


def plant_induction(model: Any) -> None:
    """Draw the embeddings and the first two layers' attention of a Qwen3 model anew, in place.

    Needs tied embeddings, four heads of a quarter of the hidden size, and at least two layers.
    Random numbers come from torch's global generator.
    """
    import torch

    hidden, width = model.config.hidden_size, model.config.head_dim
    with torch.no_grad():
        basis = _orthonormal(hidden)
        shared = basis[0]
        _embed(model.get_input_embeddings().weight, shared)
        first, second = (layer.self_attn for layer in model.model.layers[:2])
        frequencies = model.model.rotary_emb.inv_freq
        slow = (frequencies < SLOW).float().repeat(2)[:, None]
        heads = [slice(head * width, (head + 1) * width) for head in range(4)]
        # What head k of the first layer reads of a token, and where it keeps it.
        inputs = [_orthonormal(hidden)[:width] for _ in CARRIED]
        slots = [basis[1:][here] for here in heads[: len(CARRIED)]]
        for here, offset, reads, writes in zip(heads, CARRIED, inputs, slots, strict=False):
            query, key = _at_offset(frequencies, offset)
            first.q_proj.weight[here] = torch.outer(query, shared)
            first.k_proj.weight[here] = torch.outer(key, shared)
            first.v_proj.weight[here] = reads
            first.o_proj.weight[:, here] = CARRY * writes.T
        turn = _orthonormal(hidden)
        for here in heads[:2]:  # "the word before is this word": copy the word
            # Only slow frequencies, so that a match counts the same at any distance.
            second.q_proj.weight[here] = inputs[0] * slow
            second.k_proj.weight[here] = slots[0] * slow
            second.v_proj.weight[here] = turn[here]
            second.o_proj.weight[:, here] = 2 * COPY * turn[here].T
        for here in heads[2:]:  # "the same word, and the same attribute before it": copy the id
            same = (OWN * _orthonormal(hidden)[:width] + slots[1]) * slow
            second.q_proj.weight[here] = same
            second.k_proj.weight[here] = same
            second.v_proj.weight[here] = slots[2]
            second.o_proj.weight[:, here] = COPY * inputs[2].T
        for attention in (first, second):
            attention.q_norm.weight.fill_(SHARPNESS)
            attention.k_norm.weight.fill_(SHARPNESS)


def _embed(table: Any, shared: Any) -> None:
    """Draw embeddings, shape (vocabulary, hidden), with a part along `shared` (hidden,) in common.

    The common part is what a head without biases can make a purely positional query and key of.
    With tied embeddings it moves all logits alike, so it costs nothing.
    """
    import torch

    torch.nn.init.normal_(table, std=EMBEDDING_STD)
    table.sub_(torch.outer(table @ shared, shared)).add_(BIAS * shared)


def _at_offset(frequencies: Any, offset: int) -> tuple[Any, Any]:
    """Return a query and a key, each (head_dim,), that match best `offset` positions apart."""
    import torch

    fast = (frequencies > FAST).float()
    query = torch.cat([fast, torch.zeros_like(fast)])
    turned = offset * frequencies
    key = torch.cat([fast * turned.cos(), fast * turned.sin()])
    return query, key


def _orthonormal(size: int) -> Any:
    import torch

    return torch.linalg.qr(torch.randn(size, size)).Q.T
