"""A benchmark of methods: many methods on many splits and fleets, rates tuned on validation data, ranks compared."""
