"""Terms that stand for data which are no longer there, to be added to any loss: EWC, K-priors, FROMP, replay."""
