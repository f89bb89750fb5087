"""An attached model: a sample during training passes, the mean at all other times."""

import copy
import io
from itertools import combinations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from networks import perceptron
from optim.reference import data, loss, network
from posterity.learning import laplace
from posterity.memory import memory_map
from posterity.optim import EVON, IVON, SOBA, VariationalNewton
from posterity.prediction import predict

pytestmark = pytest.mark.usefixtures("arithmetic")

SETTINGS = {"lr": 0.2, "ess": 50, "betas": (0.9, 0.99)}


class Recorded(nn.Module):
    """A network that notes its first weight at every pass, and can checkpoint its middle."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.body, self.reentrant, self.seen = network(), reentrant, []

    def forward(self, x):
        self.seen.append(self.body[0].weight[0, 0].item())
        x = self.body[0](x)
        if self.reentrant is not None:
            return checkpoint(self.body[1:], x, use_reentrant=self.reentrant)
        return self.body[1:](x)


def make(**options):
    model = Recorded(**options)
    optimizer = IVON(model.parameters(), **SETTINGS)
    return model, optimizer, optimizer.attach(model)


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(model, before):
    return all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_the_mean_is_back_when_the_backward_pass_has_ended():
    model, optimizer, _ = make()
    before = values(model)
    value = loss(model, *data())
    assert not equal(model, before)
    value.backward()
    assert equal(model, before)
    optimizer.step()
    assert not equal(model, before)


def test_evaluation_passes_see_the_mean():
    model, _, _ = make()
    mean = model.body[0].weight[0, 0].item()
    model.eval()
    model(data()[0])
    model.train()
    with torch.no_grad():
        model(data()[0])
    assert model.seen == [mean, mean]
    model(data()[0])
    assert model.seen[-1] != mean


def test_passes_under_one_autocast_see_their_own_weights():
    """In training mode a sample each, between forward and backward pass the mean for those without gradients."""
    model, _, _ = make()
    inputs = data()[0]
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [model(inputs)]
        with torch.no_grad():
            mean = model(inputs)
        outputs[0].sum().backward()
        outputs.append(model(inputs))
    outputs[1].sum().backward()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(mean, model(inputs))
    assert not any(torch.equal(one, other) for one, other in combinations([mean, *outputs], 2))


def test_the_mean_is_back_also_when_only_what_was_frozen_has_gradients():
    model = network().train()
    model[0].requires_grad_(False)
    optimizer = IVON(model.parameters(), **SETTINGS)
    optimizer.attach(model)
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    before = values(model)
    loss(model, *data()).backward()
    assert equal(model, before)
    assert model[2].weight.grad is None


def test_each_micro_batch_has_fresh_noise_and_one_loss_has_one_sample():
    model, optimizer, _ = make()
    for _ in range(2):
        loss(model, *data()).backward()
    (loss(model, *data(seed=1)) + loss(model, *data(seed=2))).backward()
    assert len(set(model.seen[:3])) == 3
    assert model.seen[2] == model.seen[3]
    optimizer.step()


def test_a_pass_without_gradients_between_forward_and_backward():
    """A teacher from the same network, as in semi-supervised training: it sees the mean, the loss keeps its sample."""
    model, optimizer, _ = make()
    plain = copy.deepcopy(model)
    mean = model.body[0].weight[0, 0].item()
    before = values(model)
    value = loss(model, *data())
    with torch.no_grad():
        target = model(data()[0])
    assert model.seen[-1] == mean
    assert torch.equal(target, plain.body(data()[0]))
    sampled = values(model)
    assert not equal(model, before)
    value.backward()
    for p, s in zip(plain.parameters(), sampled, strict=True):
        p.data.copy_(s)
    loss(plain.body, *data()).backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    optimizer.step()


def test_two_backward_passes_through_one_graph():
    model, optimizer, _ = make()
    before = values(model)
    value = loss(model, *data())
    value.backward(retain_graph=True)
    value.backward()
    assert equal(model, before)
    assert len(set(model.seen)) == 1
    optimizer.step()


def test_two_passes_differentiated_one_after_the_other():
    model, optimizer, _ = make()
    before = values(model)
    one, two = loss(model, *data(seed=1)), loss(model, *data(seed=2))
    one.backward()
    two.backward()
    assert equal(model, before)
    optimizer.step()


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_differentiates_the_sample_it_ran(reentrant):
    model, optimizer, _ = make(reentrant=reentrant)
    plain, plain_optimizer, _ = make()
    for k in range(3):
        for m, o in ((model, optimizer), (plain, plain_optimizer)):
            inputs, targets = data(seed=k)
            loss(m, inputs.requires_grad_(), targets).backward()
            o.step()
            o.zero_grad()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_checkpointing_the_attached_model_itself():
    model, _, _ = make()
    plain, _, _ = make()
    nn.functional.cross_entropy(checkpoint(model, data()[0], use_reentrant=False), data()[1]).backward()
    loss(plain, *data()).backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert equal(model, values(plain))


def test_state_dicts_hold_the_mean_even_between_forward_and_backward():
    model, _, _ = make()
    before = values(model)
    model(data()[0])
    assert not equal(model, before)
    assert all(torch.equal(t, b) for t, b in zip(model.state_dict().values(), before, strict=True))


def test_questions_between_forward_and_backward_leave_the_sample():
    """As another thread may put them while one trains: what they ask of the model are its shapes."""
    torch.manual_seed(0)
    examples = torch.randn(40, 5), torch.randint(0, 2, (40,))
    model = perceptron(5, 6, 2)
    posterior, twin = laplace(model, examples, structure="diag"), copy.deepcopy(model)
    optimizer = IVON(model.parameters(), lr=0.1, ess=40)
    with optimizer.attach(model):
        value = nn.functional.cross_entropy(model(examples[0]), examples[1])
        sample = values(model)
        predict(model, posterior, examples[0], samples=2)
        memory_map(model, posterior, examples)
        assert equal(model, sample)
        value.backward()
    twin.load_state_dict(dict(zip(twin.state_dict(), sample, strict=True)))
    nn.functional.cross_entropy(twin(examples[0]), examples[1]).backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_failing_forward_pass_leaves_the_mean():
    model, optimizer, _ = make()
    before = values(model)
    with pytest.raises(RuntimeError):
        model(torch.zeros(2, 99))
    assert equal(model, before)
    loss(model, *data()).backward()
    optimizer.step()


def test_train_and_eval_of_the_optimizer():
    model, optimizer, _ = make()
    mean = model.body[0].weight[0, 0].item()
    optimizer.eval()
    model(data()[0])
    assert model.seen == [mean]
    optimizer.train()
    model(data()[0])
    assert model.seen[-1] != mean
    optimizer.eval()
    assert model.body[0].weight[0, 0].item() == mean


@pytest.mark.parametrize("kind", [EVON, VariationalNewton, SOBA])
def test_an_attached_model_takes_the_steps_of_contexts(kind):
    one, other = network(), network()
    options = {"lr": 0.1, "ess": 50, "hess_init": 0.5}
    attached, plain = kind(one.parameters(), **options), kind(other.parameters(), **options)
    attached.attach(one)
    for k in range(12):  # past the first basis of EVON
        loss(one, *data(seed=k)).backward()
        with plain.sampled_params(train=True):
            loss(other, *data(seed=k)).backward()
        for optimizer in (attached, plain):
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        for name, t in plain.state[q].items():
            torch.testing.assert_close(attached.state[p][name], t, msg=name)


def test_removing_the_attachment():
    model, optimizer, attachment = make()
    mean = model.body[0].weight[0, 0].item()
    attachment.remove()
    loss(model, *data()).backward()
    assert model.seen == [mean]
    with optimizer.attach(model):
        model(data()[0])
    assert model.seen[-1] != mean
    assert model.body[0].weight[0, 0].item() == mean


def test_copies_and_files_of_the_model_are_not_attached():
    model, _, _ = make()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        before, untouched = values(other), values(model)
        loss(other, *data())
        assert equal(other, before)
        assert equal(model, untouched)


def test_a_skipped_step_of_a_grad_scaler():
    model, optimizer, _ = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = values(model)
    scaler.scale(loss(model, *data()) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert equal(model, before)
    optimizer.zero_grad()
    scaler.scale(loss(model, *data())).backward()
    scaler.step(optimizer)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not equal(model, before)


def test_a_closure_in_an_attached_model_draws_one_sample():
    model, optimizer, _ = make()
    plain = Recorded()
    plain_optimizer = IVON(plain.parameters(), **SETTINGS)
    for m, o in ((model, optimizer), (plain, plain_optimizer)):
        for k in range(3):

            def closure(m=m, o=o, k=k):
                o.zero_grad()
                value = loss(m, *data(seed=k))
                value.backward()
                return value

            o.step(closure)
    assert equal(model, values(plain))


def test_two_models_under_one_optimizer_share_a_sample():
    encoder, decoder = nn.Linear(4, 3), nn.Linear(3, 4)
    optimizer = IVON([*encoder.parameters(), *decoder.parameters()], **SETTINGS)
    optimizer.attach(encoder)
    optimizer.attach(decoder)
    before = values(encoder) + values(decoder)
    x = data()[0]
    (decoder(encoder(x)) - x).square().mean().backward()
    assert all(torch.equal(p, b) for p, b in zip([*encoder.parameters(), *decoder.parameters()], before, strict=True))
    optimizer.step()
    assert all(optimizer.state[p]["forgetting"] > 0 for p in encoder.parameters())


def test_a_host_may_clip_inside_the_closure_of_a_step():
    """Lightning accumulates outside of closures and clips inside the last one; the products are clipped as well."""
    (one, usual, _), (other, closing, _) = make(), make()

    def backward(model, k):
        (loss(model, *data(seed=k)) / 2).backward()

    def closure():
        backward(other, 1)
        nn.utils.clip_grad_norm_(other.parameters(), 0.01)

    backward(one, 0)
    backward(one, 1)
    nn.utils.clip_grad_norm_(one.parameters(), 0.01)
    usual.step()
    backward(other, 0)
    closing.step(closure)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(closing.state[q]["hessian"], usual.state[p]["hessian"])
