"""What differential privacy rests on, without the rest of Archipel: secret noise and its account."""
