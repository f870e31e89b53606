"""The Durable Streams protocol over HTTP (docs/integrations/durable-streams.md)."""
