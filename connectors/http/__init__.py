"""HTTP: requests and WebSockets as a source, webhooks as a sink."""
