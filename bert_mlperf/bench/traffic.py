"""What a strategy sends over the link, in theory: a pure function.

Legend: H hosts, L ranks of a host (a shard group), W = H L ranks, G bytes of gradients on the wire, P bytes of weights.
Only what leaves a host counts, and all hosts send the same. gloo's all-reduce goes around a ring in which one rank of
each host has its neighbour on the next host; parts of a reduce-scatter or gather go straight to where they belong.
"""


def bytes_sent(strategy: str, *, hosts: int, ranks_per_host: int, gradients: float, weights: float) -> float:
    """Bytes that one host sends to others in a step.

    flat           each rank 1 / W of both to each rank elsewhere: L (W - L) (G + P) / W
    node           one ring over all ranks, one rank sends: 2 (W - 1) G / W; the gather stays inside
    hierarchical   a ring over the hosts for each of L parts: L x 2 (H - 1) / H x G / L; the rest stays inside
    """
    world = hosts * ranks_per_host
    if strategy == "flat":
        return ranks_per_host * (world - ranks_per_host) / world * (gradients + weights)
    if strategy == "node":
        return 2 * (world - 1) / world * gradients
    assert strategy == "hierarchical"
    return 2 * (hosts - 1) / hosts * gradients
