"""What runs the checks, counts them, and reports them: the stages, their order, their budgets."""
