"""A whole step written out: full logits, float64, one row at a time, no code of the product.

Formulas are from the papers: clipped policy gradient at ratio 1 with Dr. GRPO's constant length and
the off-policy mask of DeepSeek-V3.2, generalised JSD, TAID, EOPD, DPO and its relatives, NLL.
"""

import math

import torch
from torch.nn.functional import logsigmoid

TAID_START = 0.4
EOPD = {"tau": 0.8, "alpha": 1.0, "top_k": 16}


def logps(model, prompt, response):
    """Return log p of each response token, and the logits that predict them, in float64."""
    device = next(model.parameters()).device
    ids = torch.tensor([[*prompt, *response]], device=device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double()
    picked = logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])
    return picked.squeeze(-1), logits


def base_logps(base, prompt, response):
    """Return what a model without its adapter, or a model of its own, says."""
    with torch.no_grad():
        return base(prompt, response)


def losses(model, base, drawn, recipe, data):
    """Return each weighted channel's loss on the rows of a step, with a graph.

    Args:
        model: the policy, in float64.
        base: (prompt, response) to :func:`logps` of the model before training.
        drawn: channel to the rows of the step.
        recipe: the recipe.
        data: all rows of the run, which mean length and pair weights are taken over.
    """
    how = {"grpo": grpo, "sdpo": sdpo, "dpo": dpo, "sft": sft}
    weights = recipe.channels.weights()
    return {
        name: how[name](model, base, drawn[name], getattr(recipe.channels, name), data)
        for name in weights
    }


def grpo(model, base, groups, options, data):
    sizes = [
        (len(answer), count) for g in data.groups
        for answer, count in zip(g.completions, g.counts, strict=True)
    ]  # fmt: skip
    length = sum(n * count for n, count in sizes) / sum(count for _, count in sizes)
    total = 0.0
    for group in groups:
        each = [  # a group as it was answered: every answer as often as it was given
            (answer, reward)
            for answer, count, reward in zip(
                group.completions, group.counts, group.rewards, strict=True
            )
            for _ in range(count)
        ]
        mean = sum(reward for _, reward in each) / len(each)
        for answer, reward in each:
            now, _ = logps(model, group.prompt_ids, answer)
            before, _ = base_logps(base, group.prompt_ids, answer)
            fallen, limit = float((before - now.detach()).mean()), options.off_policy_threshold
            if limit is not None and reward < mean and fallen > limit:
                continue
            ratio = (now - now.detach()).exp()
            total = total - (ratio * (reward - mean)).sum() / length / len(each) / len(groups)
    return total


def divergence(student, teacher, options):
    """Return the divergence of each token, (n,), from logits."""
    if options.divergence == "taid":
        mixed = (1 - TAID_START) * student.detach() + TAID_START * teacher
        return -(mixed.softmax(-1) * student.log_softmax(-1)).sum(-1)
    if options.divergence == "eopd":
        s, t = student.log_softmax(-1), teacher.log_softmax(-1)
        unsure = (-(t.exp() * t).sum(-1) > EOPD["tau"]).double() * EOPD["alpha"]
        best = teacher.topk(min(EOPD["top_k"], teacher.shape[-1]), -1).indices
        q = teacher.gather(-1, best).log_softmax(-1)
        forward = (q.exp() * (q - s.gather(-1, best))).sum(-1)
        return (s.exp() * (s - t)).sum(-1) + unsure * forward
    s = (student / options.temperature).log_softmax(-1)
    t = (teacher / options.temperature).log_softmax(-1)
    beta = options.jsd_beta
    if beta == 0:
        return (t.exp() * (t - s)).sum(-1)
    if beta == 1:
        return (s.exp() * (s - t)).sum(-1)
    m = ((1 - beta) * s.exp() + beta * t.exp()).log()
    to_mean = beta * (t.exp() * (t - m)).sum(-1)
    return to_mean + (1 - beta) * (s.exp() * (s - m)).sum(-1)


def sdpo(model, base, hints, options, data):
    tokens, total = sum(hint.length for hint in hints), 0.0
    for hint in hints:
        span = slice(hint.start, hint.start + hint.length)
        now, student = logps(model, hint.prompt_ids, hint.response_ids)
        _, teacher = base_logps(base, hint.teacher_prompt_ids, hint.response_ids)
        each = divergence(student[span], teacher[span], options)
        if options.importance_clip is not None:
            before, _ = base_logps(base, hint.prompt_ids, hint.response_ids)
            each = each * (now.detach() - before).exp()[span].clamp(max=options.importance_clip)
        total = total + each.sum() / tokens
    return total


def dpo(model, base, pairs, options, data):
    mean = sum(pair.weight for pair in data.pairs) / len(data.pairs)
    total = 0.0
    for pair in pairs:
        sides = []
        for response in (pair.chosen_ids, pair.rejected_ids):
            now = logps(model, pair.prompt_ids, response)[0].sum()
            before = base_logps(base, pair.prompt_ids, response)[0].sum()
            sides += [now, now - before]
        lengths = len(pair.chosen_ids), len(pair.rejected_ids)
        loss = pair_loss(sides, lengths, options)
        total = total + loss * pair.weight / mean / len(pairs)
    return total


def pair_loss(sides, lengths, options):
    """Return a pair's loss: log p of both sides, and ``up`` and ``down``, less the base model's."""
    (chosen, up, rejected, down), (many, few) = sides, lengths
    beta, eps, gap = options.beta, options.label_smoothing, options.beta * (up - down)
    if options.loss == "simpo":
        margin = beta * (chosen / many - rejected / few) - options.simpo_gamma
        return -logsigmoid(margin) * (1 - eps) - logsigmoid(-margin) * eps
    return {
        "sigmoid": lambda: -logsigmoid(gap) * (1 - eps) - logsigmoid(-gap) * eps,
        "hinge": lambda: (1 - gap).clamp(min=0),
        "ipo": lambda: (up / many - down / few - 1 / (2 * beta)) ** 2,
        "sigmoid_norm": lambda: -logsigmoid(beta * (up / many - down / few)),
        "robust": lambda: (-logsigmoid(gap) * (1 - eps) + logsigmoid(-gap) * eps) / (1 - 2 * eps),
        "exo_pair": lambda: (
            gap.sigmoid() * (logsigmoid(gap) - math.log(1 - eps))
            + (-gap).sigmoid() * (logsigmoid(-gap) - math.log(eps))
        ),
        "nca_pair": lambda: (
            -logsigmoid(beta * up) - 0.5 * logsigmoid(-beta * up) - 0.5 * logsigmoid(-beta * down)
        ),
        "sppo_hard": lambda: (up - 0.5 / beta) ** 2 + (down + 0.5 / beta) ** 2,
        "apo_zero": lambda: 1 - (beta * up).sigmoid() + (beta * down).sigmoid(),
        "apo_down": lambda: (beta * up).sigmoid() + 1 - gap.sigmoid(),
        "discopop": lambda: (
            -logsigmoid(gap) * (1 - (gap / 0.05).sigmoid()) + (-gap).exp() * (gap / 0.05).sigmoid()
        ),
    }[options.loss]()


def sft(model, base, demonstrations, options, data):
    tokens = sum(len(row.response_ids) for row in demonstrations)
    return -sum(
        logps(model, row.prompt_ids, row.response_ids)[0].sum() for row in demonstrations
    ) / tokens  # fmt: skip


def gradient(model):
    """Return the gradient of what a model trains, (n,), in float64."""
    trained = [p for p in model.parameters() if p.requires_grad]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return torch.cat([grad.double().flatten() for grad in grads])


def step(trainer, data, base=None):
    """Return loss and gradient of a trainer's first step by the formulas; its model turns float64.

    ``base`` is a model before training, in float64, where the policy has no adapter to turn off.
    """
    drawn = {channel.name: channel.drawn(0) for channel in trainer.channels}
    model = trainer.policy.model.double()
    model.zero_grad()

    def before(prompt, response):
        if base is not None:
            return logps(base, prompt, response)
        with model.disable_adapter():
            return logps(model, prompt, response)

    found = losses(model, before, drawn, trainer.recipe, data)
    weights = trainer.recipe.channels.weights()
    total = sum(weights[name] * loss for name, loss in found.items())
    total.backward()
    return float(total.detach()), gradient(model)
