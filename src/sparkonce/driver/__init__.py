"""The driver's side without Spark: it carries out what the coordinator asks for."""
