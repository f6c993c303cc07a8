"""The compiled loop for environments of several behaviors (`JaxScene`), made of the parts of that for one."""
