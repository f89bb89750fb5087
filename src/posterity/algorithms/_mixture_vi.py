"""Non-conjugate variational inference with a mixture of Gaussians and exact expectations."""

from posterity.algorithms._base import Algorithm
from posterity.algorithms._multimodal import multimodal
from posterity.families import MixtureOfGaussians
from posterity.gradients import Quadrature


def mixture_vi(lr: float = 0.1, nodes: int = 20, retracted: bool = True) -> Algorithm[MixtureOfGaussians]:
    """Non-conjugate variational inference with a mixture.

    Posterior: q = Σ_k π_k N(m_k, S_k⁻¹), natural gradients taken in the joint of θ and the component z.

    Multimodal optimisation without the delta method: f = ℓ + log q is averaged over each component. Plainly,

        S_k ← S_k + ρ E_k[∇²f],   m_k ← m_k − ρ S_k⁻¹ E_k[∇f],   log π_k/π_K ← log π_k/π_K − ρ (E_k[f] − E_K[f]),

    at rest where the free energy E_q[ℓ] − H(q) is stationary.

    Args:
        lr: ρ.
        nodes: Gauss-Hermite nodes in each dimension.
        retracted: Whether the precisions move by the retraction.
    """
    return multimodal(lr, retracted=retracted).but(gradient=Quadrature(nodes))
