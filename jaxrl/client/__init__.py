"""Unity builds in a user's own Python loop: `jaxrl.unity_environment`, and its Gymnasium and PettingZoo views."""
