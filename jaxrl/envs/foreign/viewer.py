"""A window that shows pictures, with what Python itself brings (tkinter)."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image


class ViewerError(Exception):
    """There is no window: no display, no tkinter, or somebody has closed it."""


class Window:
    """Opens when it is made. Raises ViewerError."""

    def __init__(self) -> None:
        try:
            import tkinter

            self._root: Any = tkinter.Tk()
            self._root.title("jaxrl")
            self._label: Any = tkinter.Label(self._root)
            self._label.pack()
        except Exception as error:  # whatever the window system raises
            raise ViewerError(f"no window can be opened ({error})") from error

    def show(self, picture: np.ndarray) -> None:
        """Show uint8 [H, W, 3]. Raises ViewerError."""
        try:
            from PIL import ImageTk

            photo = ImageTk.PhotoImage(Image.fromarray(picture), master=self._root)
            self._label.configure(image=photo)
            self._label.image = photo  # tkinter itself keeps no reference
            self._root.update()
        except Exception as error:  # a closed window raises at the next use
            raise ViewerError(f"the window is gone ({error})") from error

    def close(self) -> None:
        """May be called twice."""
        root, self._root = self._root, None
        if root is not None:
            try:
                root.destroy()
            except Exception as error:
                raise ViewerError(f"the window cannot be closed ({error})") from error
