"""scikit-learn searches for the best parameters; each fit runs on an executor of Falcon: pip install scikit-learn."""

import joblib
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import inband.joblib

if __name__ == "__main__":
    x, y = load_iris(return_X_y=True)
    search = GridSearchCV(SVC(), {"C": [0.1, 1, 10, 100], "gamma": [0.01, 0.1, 1]}, cv=5)
    inband.joblib.register()
    with joblib.parallel_config(backend="inband"):
        search.fit(x, y)
    print(f"{search.best_params_}: {search.best_score_:.3f}")
