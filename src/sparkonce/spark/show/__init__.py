"""Prepares a query's errors for users: ``failures`` converts an error to the form that PySpark should show."""
