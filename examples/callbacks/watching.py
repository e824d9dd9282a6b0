"""Callbacks of one's own: one stops a run that is good enough, the other tells of it once."""

from trainers import Callback, SeenEvent


class GoodEnough(Callback):
    """Evaluates when the training loss is low, and stops when the test loss is."""

    def __init__(self, loss: float = 0.1) -> None:
        self.loss = loss

    def on_step(self, event: SeenEvent) -> None:
        if event.data["loss"] < self.loss:
            self.ask_to_evaluate()

    def on_evaluation(self, event: SeenEvent) -> None:
        if event.data["test_loss"] < self.loss:
            self.ask_to_stop(f"the loss is below {self.loss}")


class Tell(Callback):
    """Prints each evaluation; Ray shows it in the log of the process."""

    def on_evaluation(self, event: SeenEvent) -> None:
        if not event.replayed:
            print(dict(event.data))
