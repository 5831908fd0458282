"""What a person can let a member do by its pages."""
