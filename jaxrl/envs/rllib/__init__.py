"""`--env rllib:MODULE:CLASS`: environments with the interface of RLlib's `MultiAgentEnv`; Ray is not needed."""
