"""What crosses a process: frozen typed messages, states and the one error tree."""
