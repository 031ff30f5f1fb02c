"""The systems that a query under verification writes to: started here, or the user's own."""
