"""The other end of the wire: a process that behaves as a Unity player does. Numpy only."""
