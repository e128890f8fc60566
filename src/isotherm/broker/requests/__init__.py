"""What a request is given: its declaration, its surroundings, its quotas."""
