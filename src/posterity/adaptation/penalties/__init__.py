"""Penalties that replace data which are no longer available, to be added to any loss: EWC, K-priors, FROMP, replay."""
