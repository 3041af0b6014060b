"""KV lifecycle policies: what becomes of an agent's keys and values between its calls. One module each."""
