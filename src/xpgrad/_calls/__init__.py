"""From a public function's arguments to an engine or a program."""
