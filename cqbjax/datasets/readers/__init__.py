"""One reader a schema: files as they are published, read into a `RoutingTable`."""
