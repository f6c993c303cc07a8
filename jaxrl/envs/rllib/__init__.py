"""`--env rllib:MODULE:CLASS`: serves environments with the interface of RLlib's `MultiAgentEnv`, without Ray."""
