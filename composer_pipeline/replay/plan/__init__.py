"""The price before the purchase: what each way to ask would cost, and why.

Does not belong here: spending.
"""

from composer_pipeline.replay.plan.plan import Plan, TeacherPlan, plan, selector_for

__all__ = ["Plan", "TeacherPlan", "plan", "selector_for"]
