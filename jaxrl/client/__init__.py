"""Unity builds in a Python loop of one's own: `jaxrl.unity_environment`, and its Gymnasium and PettingZoo views."""
