"""Who looks on while a run trains, and holds no step up."""
