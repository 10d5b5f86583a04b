ln -s "$PROJECT/examples" examples
