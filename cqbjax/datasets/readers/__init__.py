"""Readers, one per schema: they read published files into a `RoutingTable`."""
