"""The rule in the browser: losses, families and estimators to choose, and q that moves."""

from posterity.app.rule._show import show_rule

__all__ = ["show_rule"]
