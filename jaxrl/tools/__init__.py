"""Tools that look at runs and train nothing: report, dashboard, watch, doctor, bench."""
