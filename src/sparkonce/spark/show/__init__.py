"""Shows users a query's errors: ``failures`` gives an error the form that PySpark should show."""
