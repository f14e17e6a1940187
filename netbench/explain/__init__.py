"""Why a collective takes longer than its bytes, from the record that ``netbench.experiments`` leaves."""
